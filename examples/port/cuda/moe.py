# SPDX-License-Identifier: Apache-2.0
"""A small mixture-of-experts layer with expert parallelism, as written for CUDA: the subject of docs/guide/port.md."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class MoE(nn.Module):
    def __init__(self, dim, hidden, num_experts, top_k, world):
        super().__init__()
        self.gate = nn.Linear(dim, num_experts, bias=False)
        self.top_k, self.world = top_k, world
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim)) for _ in range(num_experts // world)
        )

    def forward(self, x):
        scores = F.softmax(self.gate(x), dim=-1)
        weights, expert_ids = torch.topk(scores, self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)

        # Tokens in the order of their experts, to the ranks that own them.
        order = expert_ids.flatten().argsort()
        rows = x[order // self.top_k]
        sorted_ids = expert_ids.flatten()[order]
        received_ids = torch.empty_like(sorted_ids)
        dist.all_to_all_single(received_ids, sorted_ids)
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows)

        out = torch.zeros_like(received)
        local = received_ids % len(self.experts)
        for e, expert in enumerate(self.experts):
            index = (local == e).nonzero().squeeze(-1)
            if index.numel() > 0:
                out[index] = expert(received[index])

        back = torch.empty_like(out)
        dist.all_to_all_single(back, out)
        y = torch.zeros_like(x)
        y.index_add_(0, order // self.top_k, back * weights.flatten()[order].unsqueeze(-1))
        return y
