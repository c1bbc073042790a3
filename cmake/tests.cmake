# SPDX-License-Identifier: Apache-2.0
# One test program per folder of src/ and tests/: a change in one room rebuilds one program.
find_package(GTest REQUIRED)
pkg_check_modules(LZMA REQUIRED IMPORTED_TARGET liblzma)
include(GoogleTest)

file(GLOB PM_TEST_SUPPORT CONFIGURE_DEPENDS tests/support/*.cc)
add_library(pm_test_support STATIC ${PM_TEST_SUPPORT})
target_include_directories(pm_test_support PUBLIC tests)
target_link_libraries(pm_test_support PUBLIC pointsman_core GTest::gtest GTest::gmock PkgConfig::LZMA)
target_compile_definitions(pm_test_support PUBLIC PM_SOURCE_DIR="${CMAKE_SOURCE_DIR}" PM_BINARY_DIR="${CMAKE_BINARY_DIR}")

function(pm_add_tests name)
  if(NOT ARGN)
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE pm_test_support GTest::gtest_main)
  # The command-line program is what some tests run.
  add_dependencies(${name} pointsman)
  gtest_discover_tests(${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()

foreach(room base memory tensor device checkpoint tokenizer ops experts model sample engine pack verify audit doctor cli)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS src/${room}/*_test.cc)
  pm_add_tests(${room}_test ${files})
endforeach()
foreach(room integration issues)
  file(GLOB files CONFIGURE_DEPENDS tests/${room}/*_test.cc)
  pm_add_tests(${room}_test ${files})
endforeach()

# The arrows between the rooms point one way.
add_executable(check_layers tools/check_layers.cc)
add_test(NAME Layers.IncludesPointOneWay COMMAND check_layers ${CMAKE_SOURCE_DIR})

# The rules of the audit over their fixtures, line by line; prints precision and recall per rule.
set_target_properties(audit_score PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME Audit.FixturesGiveExactLines COMMAND audit_score ${CMAKE_SOURCE_DIR}/tests/audit/fixtures)

# Every fuzz target over its corpus, without libFuzzer.
file(GLOB PM_FUZZERS CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cc)
foreach(file ${PM_FUZZERS})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" target ${name})
  add_executable(replay_${target} ${file} tests/fuzz/replay_main.cc)
  target_link_libraries(replay_${target} PRIVATE pointsman_core)
  add_test(NAME Fuzz.${target}.CorpusReplays COMMAND replay_${target} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${target})
  set_tests_properties(Fuzz.${target}.CorpusReplays PROPERTIES TIMEOUT 300)
endforeach()
