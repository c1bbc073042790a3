# SPDX-License-Identifier: Apache-2.0
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from apex.optimizers import FusedAdam

from moe import MoE, RMSNorm


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl", timeout=timedelta(minutes=10))
    torch.cuda.manual_seed_all(1234)
    model = torch.nn.Sequential(RMSNorm(1024), MoE(1024, 512, 64, 8, dist.get_world_size())).cuda().half()
    model = torch.compile(model, mode="reduce-overhead")
    optimizer = FusedAdam(model.parameters(), lr=1e-4)
    for step in range(1000):
        x = torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        if rank == 0:
            dist.all_reduce(loss)
            print(step, loss.item())


if __name__ == "__main__":
    main()
