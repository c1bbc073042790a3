# SPDX-License-Identifier: Apache-2.0
# -DPM_BUILD_ENGINE=OFF: audit, doctor, compare and version, without the engine. No tests: they need it.
set(PM_BUILD_TESTS OFF)
set(PM_BUILD_BENCH OFF)
set(PM_BUILD_FUZZERS OFF)

# The rooms that these commands stand on.
list(FILTER PM_SOURCES INCLUDE REGEX "/src/(base|tensor|checkpoint|verify|audit|doctor)/|/src/memory/memory_limit|/src/ops/moe/route_reference")

function(pm_keep_tool_commands list)
  set(kept ${${list}})
  # Commands that command_list.inc marks as the engine's, and what only they use.
  file(STRINGS src/cli/command_list.inc lines REGEX "^PM_ENGINE_COMMAND")
  foreach(line ${lines})
    string(REGEX REPLACE "^PM_ENGINE_COMMAND\\(([a-z_]+).*" "\\1" command "${line}")
    list(FILTER kept EXCLUDE REGEX "/${command}(_[a-z]+)?\\.cc$")
  endforeach()
  list(FILTER kept EXCLUDE REGEX "/(conversation|engine_flags|generate|interrupt|load|progress|prompt|sampling_flags|stats|unit_groups)\\.cc$")
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# Most of the time goes into reading the same headers.
function(pm_speed_up_build)
  target_precompile_headers(pointsman_core PRIVATE <algorithm> <fmt/format.h> "${CMAKE_SOURCE_DIR}/src/audit/rule.h")
  target_precompile_headers(pointsman_cli PRIVATE <algorithm> <fmt/format.h> <string> <vector>)
  target_compile_definitions(pointsman_core PUBLIC PM_WITHOUT_ENGINE)
endfunction()
