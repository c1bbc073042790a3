# SPDX-License-Identifier: Apache-2.0
# One libFuzzer program per tests/fuzz/fuzz_*.cc. CORPUS below is its seeds, which the test suite replays without libFuzzer (cmake/tests.cmake).
#   cmake --preset fuzz && cmake --build --preset fuzz
#   mkdir -p /tmp/found && build/fuzz/fuzz_NAME -rss_limit_mb=512 -timeout=10 /tmp/found tests/fuzz/corpus/NAME
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "libFuzzer comes with clang. Set CMAKE_CXX_COMPILER, for example cmake --preset fuzz -DCMAKE_CXX_COMPILER=clang++-16")
endif()

file(GLOB PM_FUZZERS CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cc)
foreach(file ${PM_FUZZERS})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE pointsman_core -fsanitize=fuzzer)
endforeach()
