// SPDX-License-Identifier: Apache-2.0
#include "audit/report/markup.h"

namespace pointsman::audit {

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (c < 0x20 && c != '\n' && c != '\t') {
          out += '?';
        } else if (c == 0xEF && i + 2 < text.size() && static_cast<uint8_t>(text[i + 1]) == 0xBF && static_cast<uint8_t>(text[i + 2]) >= 0xBE) {
          out += '?';  // U+FFFE, U+FFFF
          i += 2;
        } else {
          out += text[i];
        }
    }
  }
  return out;
}

}  // namespace pointsman::audit
