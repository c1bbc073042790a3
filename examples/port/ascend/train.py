# SPDX-License-Identifier: Apache-2.0
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_npu

from moe import MoE, RMSNorm


def main():
    rank = int(os.environ["RANK"])
    device = torch.device("npu", int(os.environ["LOCAL_RANK"]))
    torch.npu.set_device(device)
    dist.init_process_group(backend="hccl", timeout=timedelta(minutes=40))
    torch.manual_seed(1234)
    model = torch.nn.Sequential(RMSNorm(1024), MoE(1024, 512, 64, 8, dist.group.WORLD)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1000):
        x = torch.randn(4096, 1024, device=device)
        with torch.autocast("npu", dtype=torch.bfloat16):
            y = model(x)
        loss = y.float().pow(2).mean()
        loss.backward()
        for name, p in model.named_parameters():
            if not name.startswith("1.w_"):  # experts belong to one rank
                dist.all_reduce(p.grad)  # fp32 parameters: fp32 gradients
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        if rank == 0:
            print(step, loss.item() / dist.get_world_size())


if __name__ == "__main__":
    main()
