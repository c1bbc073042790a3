# SPDX-License-Identifier: Apache-2.0
# Data files as part of the program: PM_EMBEDDED_DATA is a source file that holds their text (src/base/embedded_data.h).
set(PM_DATA_FILES cann_ops cann_versions torch_npu_names)
foreach(name ${PM_DATA_FILES})
  set(path ${CMAKE_SOURCE_DIR}/data/audit/${name}.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  string(TOUPPER PM_${name} variable)
  file(READ ${path} ${variable})
  install(FILES ${path} DESTINATION share/pointsman/audit)
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/embedded_data.cc.in ${CMAKE_BINARY_DIR}/generated/embedded_data.cc @ONLY)
set(PM_EMBEDDED_DATA ${CMAKE_BINARY_DIR}/generated/embedded_data.cc)
