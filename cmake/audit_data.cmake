# SPDX-License-Identifier: Apache-2.0
# The facts of the audit travel inside the program: data/audit/*.json become one source file of raw string literals.
set(PM_AUDIT_DATA cann_ops.json cann_versions.json torch_npu_names.json)
set(PM_EMBEDDED_FILES "")
foreach(name ${PM_AUDIT_DATA})
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/data/audit/${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} text)
  string(APPEND PM_EMBEDDED_FILES "    {\"${name}\", R\"PM_DATA(${text})PM_DATA\"},\n")
endforeach()
set(PM_AUDIT_DATA_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/audit_data.cc)
file(CONFIGURE OUTPUT ${PM_AUDIT_DATA_SOURCE} @ONLY CONTENT "// SPDX-License-Identifier: Apache-2.0
// Generated from data/audit by cmake/audit_data.cmake.
#include \"audit/embedded_data.h\"

namespace pointsman::audit {
namespace {
constexpr EmbeddedFile kFiles[] = {
@PM_EMBEDDED_FILES@};
}  // namespace
const std::span<const EmbeddedFile> kEmbeddedFiles = kFiles;
}  // namespace pointsman::audit
")
install(FILES data/audit/cann_ops.json data/audit/cann_versions.json data/audit/torch_npu_names.json DESTINATION share/pointsman/audit)
