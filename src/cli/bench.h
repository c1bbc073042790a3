// SPDX-License-Identifier: Apache-2.0
//
// The parts of `pointsman bench`: one file each. argv[0] is the part's name.
#pragma once

namespace pointsman::cli {

int run_bench_cache(int argc, char** argv);
int run_bench_decode(int argc, char** argv);
int run_bench_io(int argc, char** argv);
int run_bench_ops(int argc, char** argv);

}  // namespace pointsman::cli
