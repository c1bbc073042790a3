# SPDX-License-Identifier: Apache-2.0
"""The layer of ../cuda/moe.py after its port plan. Written from the operators' documentation; not run on hardware here."""
import torch
import torch.distributed as dist
import torch_npu
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]


class Exchange(torch.autograd.Function):
    """Rows to the ranks that own their experts; the gradient goes back with the sizes swapped."""

    @staticmethod
    def forward(ctx, rows, sends, receives, group):
        ctx.sizes, ctx.group = (sends, receives), group
        out = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), receives, sends, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        sends, receives = ctx.sizes
        back = grad.new_empty(sum(sends), *grad.shape[1:])
        dist.all_to_all_single(back, grad.contiguous(), sends, receives, group=ctx.group)
        return back, None, None, None


class MoE(nn.Module):
    def __init__(self, dim, hidden, num_experts, top_k, group):
        super().__init__()
        self.gate = nn.Linear(dim, num_experts, bias=False, dtype=torch.float32)  # the router stays in fp32
        self.top_k, self.num_experts, self.group = top_k, num_experts, group
        local = num_experts // dist.get_world_size(group)
        self.w_in = nn.Parameter(torch.empty(local, dim, hidden).normal_(0, 0.02))
        self.w_out = nn.Parameter(torch.empty(local, hidden, dim).normal_(0, 0.02))

    def forward(self, x):
        scores, ids, _ = torch_npu.npu_moe_gating_top_k_softmax_v2(self.gate(x.float()), k=self.top_k, renorm=0)
        weights = scores / scores.sum(-1, keepdim=True)
        rows, positions = torch_npu.npu_moe_token_permute(x, ids)

        # The counts first, then the rows: how many go where depends on the routing.
        per_expert = torch.bincount(ids.flatten(), minlength=self.num_experts)
        received_per_expert = torch.empty_like(per_expert)
        dist.all_to_all_single(received_per_expert, per_expert, group=self.group)
        local = self.w_in.shape[0]
        sends = per_expert.view(-1, local).sum(-1).tolist()  # pointsman: ignore[R07] one synchronisation; sizes of the exchange live on the host
        receives = received_per_expert.view(-1, local).sum(-1).tolist()  # pointsman: ignore[R07] the same one
        received = Exchange.apply(rows, sends, receives, self.group)

        # From rank-major to expert-major, one grouped product, and back.
        owner = torch.arange(local, device=x.device).repeat(len(receives)).repeat_interleave(received_per_expert)
        grouped, inverse = torch_npu.npu_moe_token_permute(received, owner.to(torch.int32))
        ends = torch.bincount(owner, minlength=local).cumsum(0)
        h = torch_npu.npu_grouped_matmul([grouped], [self.w_in], group_list=ends, split_item=3, group_type=0, group_list_type=0)[0]
        y = torch_npu.npu_grouped_matmul([nn.functional.silu(h)], [self.w_out], group_list=ends, split_item=3, group_type=0, group_list_type=0)[0]
        y = torch_npu.npu_moe_token_unpermute(y, inverse)
        y = Exchange.apply(y, receives, sends, self.group)
        return torch_npu.npu_moe_token_unpermute(y, positions, probs=weights.to(y.dtype))
