// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace pointsman::audit {

// Text for XML and HTML, in elements and double-quoted attributes. Characters that XML 1.0 forbids become '?'.
std::string escape_markup(std::string_view text);

}  // namespace pointsman::audit
