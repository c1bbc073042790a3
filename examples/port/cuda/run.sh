#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
export NCCL_SOCKET_IFNAME=eth0
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
torchrun --nproc_per_node=8 train.py
