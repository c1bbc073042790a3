# SPDX-License-Identifier: Apache-2.0
# The measuring code is part of the library (src/ops/bench): `pointsman bench` prints the same figures.
add_executable(ops_bench bench/micro/ops_bench.cc)
target_link_libraries(ops_bench PRIVATE pointsman_core)
add_executable(audit_bench bench/micro/audit_bench.cc)
target_link_libraries(audit_bench PRIVATE pointsman_core)
