// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do at most, measured now: the figures that a kernel's speed is a fraction of. A benchmark prints them first,
// because a shared machine has other limits every hour.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "device/device.h"

namespace pointsman::ops {

struct MachineLimits {
  int threads = 0;
  double read_gb_s_one = 0, read_gb_s = 0;       // a linear sum over memory larger than the caches; one thread, all threads
  double copy_gb_s_one = 0, copy_gb_s = 0;       // a copy past the caches (non-temporal stores), bytes read and written together
  double fma_gflop_s_one = 0, fma_gflop_s = 0;   // fp32 fused multiply-add, two operations each
  double bf16_gflop_s_one = 0, bf16_gflop_s = 0; // vdpbf16ps, four operations per lane; 0 without it
  double int8_gop_s_one = 0, int8_gop_s = 0;     // vpdpbusd, eight operations per lane; 0 without it
  bool disturbed = false;  // other processes held the cores throughout: fractions of these figures mean little
};

struct LimitOptions {
  int64_t read_bytes = int64_t{1} << 30;
  int repeats = 9;  // passes over the memory, in windows; the best window counts: disturbances only ever slow down
};

// Measures with the widest instructions that `isa` allows. Needs read_bytes of memory from `device`, host-visible.
Result<MachineLimits> measure_machine_limits(Device& device, ThreadPool& pool, Isa isa, const CpuFeatures& cpu, const LimitOptions& options = {});

// The same linear sum over memory that is there already, host-visible, by all threads of the pool: appends the GB/s of each of `count` windows of
// 32 MiB, window number `first` and on, modulo those that fit. What memory gives between the steps of a run, when other machines share it.
// Nothing when fewer than four windows fit: those would come from caches.
void measure_read_rate(ThreadPool& pool, Isa isa, const void* memory, size_t bytes, int64_t first, int64_t count, std::vector<double>& gb_s);

}  // namespace pointsman::ops
