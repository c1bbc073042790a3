# SPDX-License-Identifier: Apache-2.0
# Warnings, the instruction-set baseline, and per-file flags of kernels.

add_library(pm_options INTERFACE)
# g++ 12 reports -Wrestrict inside its own std::string (PR 105329).
target_compile_options(pm_options INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  # Everything but the kernels runs on any x86-64-v2 machine. Contraction is off: a * b + c is one rounding only where the code says fma.
  target_compile_options(pm_options INTERFACE -march=x86-64-v2 -ffp-contract=off)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(pm_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
target_compile_definitions(pm_options INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:_GLIBCXX_ASSERTIONS>)

# Files named *_avx2.cc and *_avx512.cc may use those instructions. They include no standard-library header with inline
# functions: the linker could otherwise keep a copy that a smaller CPU cannot run. g++ 12 warns about its own AVX-512 header (PR 105593).
function(pm_set_isa_flags)
  foreach(file ${ARGN})
    if(file MATCHES "_avx2\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mbmi2")
    elseif(file MATCHES "_panel_avx512\\.cc$")  # and VBMI
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;-mavx2;-mfma;-mf16c;-mbmi2;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mavx512vnni;-mavx512vbmi;-mprefer-vector-width=512")
    elseif(file MATCHES "_avx512\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;-mavx2;-mfma;-mf16c;-mbmi2;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mavx512vnni;-mprefer-vector-width=512")
    elseif(file MATCHES "/kernels_scalar\\.cc$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      # Here it is the reference of the others, and -O3 takes four times as long to compile; elsewhere it is all there is.
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>")
    endif()
  endforeach()
endfunction()
