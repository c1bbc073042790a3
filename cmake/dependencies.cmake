# SPDX-License-Identifier: Apache-2.0
# Debian packages: see docs/design/dependencies.md and scripts/packages.txt.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)

add_library(pm_dependencies INTERFACE)
target_link_libraries(pm_dependencies INTERFACE fmt::fmt nlohmann_json::nlohmann_json simdjson::simdjson OpenSSL::Crypto
                                                PkgConfig::XXHASH PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::URING Threads::Threads)

# hwloc: NUMA topology for `pointsman doctor`. Without it /sys is read.
set(PM_WITH_HWLOC AUTO CACHE STRING "Use hwloc for topologies: AUTO, ON, OFF")
if(NOT PM_WITH_HWLOC STREQUAL "OFF")
  if(PM_WITH_HWLOC STREQUAL "ON")
    pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
  else()
    pkg_check_modules(HWLOC IMPORTED_TARGET hwloc)
  endif()
  if(HWLOC_FOUND)
    target_link_libraries(pm_dependencies INTERFACE PkgConfig::HWLOC)
    # One file includes it.
    set_source_files_properties(src/doctor/topology.cc PROPERTIES COMPILE_DEFINITIONS PM_HAVE_HWLOC=1)
  endif()
endif()
