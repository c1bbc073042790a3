// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

utf8proc_category_t category(uint32_t cp) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(cp));
}

int combining_class(uint32_t cp) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->combining_class;
}

// True for characters that no normalisation form touches and that never join with the character before them, so that text may
// be cut in front of them. Not the complete set: common ranges, to be fast on common text.
bool is_boundary(uint32_t cp, NormalForm form) {
  if (form != NormalForm::kNfc) return cp < 0x80;
  if (cp < 0x300) return true;
  return (cp >= 0x400 && cp <= 0x482) ||                                      // Cyrillic
         (cp >= 0x2010 && cp <= 0x205E) ||                                    // punctuation
         (cp >= 0x3001 && cp <= 0x3029) ||                                    // CJK punctuation; U+302A.. are marks
         (cp >= 0x3041 && cp <= 0x3096) ||                                    // kana; U+3099, U+309A are marks
         (cp >= 0x30A0 && cp <= 0x30FF) || (cp >= 0x4E00 && cp <= 0x9FFF) ||  // Han
         (cp >= 0xAC00 && cp <= 0xD7A3) ||                                    // Hangul syllables
         (cp >= 0xFF01 && cp <= 0xFFEF) || (cp >= 0x1F300 && cp <= 0x1FAFF);  // wide forms, emoji
}

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size() + 16);
  for (size_t i = 0; i < text.size();) {
    const uint32_t cp = utf8_decode_valid(text, i);
    utf8proc_int32_t parts[32];  // the longest decomposition has 18 characters
    int boundary = 0;
    // The reference's tables end before this character (Unicode 13) and neither split nor make it.
    const utf8proc_ssize_t n =
        cp == 0x11938 ? 0 : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(cp), parts, 32, options, &boundary);
    if (n > 0 && n <= 32) {
      points.insert(points.end(), parts, parts + n);
    } else {
      points.push_back(static_cast<utf8proc_int32_t>(cp));
    }
  }
  // Canonical ordering: each run of marks is sorted by class, stably.
  for (size_t i = 0; i < points.size();) {
    if (combining_class(static_cast<uint32_t>(points[i])) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    bool sorted = true;
    int last = combining_class(static_cast<uint32_t>(points[i]));
    for (; end < points.size(); ++end) {
      const int c = combining_class(static_cast<uint32_t>(points[end]));
      if (c == 0) break;
      sorted = sorted && last <= c;
      last = c;
    }
    if (!sorted) {
      std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i), points.begin() + static_cast<std::ptrdiff_t>(end),
                       [](utf8proc_int32_t a, utf8proc_int32_t b) {
                         return combining_class(static_cast<uint32_t>(a)) < combining_class(static_cast<uint32_t>(b));
                       });
    }
    i = end;
  }
  if (compose) {
    // U+11935 U+11930 would make U+11938: composed apart, they stay.
    size_t kept = 0;
    for (size_t begin = 0; begin < points.size();) {
      size_t end = begin + 1;
      while (end < points.size() && !(points[end] == 0x11930 && points[end - 1] == 0x11935)) ++end;
      const utf8proc_ssize_t n =
          utf8proc_normalize_utf32(points.data() + begin, static_cast<utf8proc_ssize_t>(end - begin), options);
      const size_t length = n >= 0 ? static_cast<size_t>(n) : end - begin;
      std::copy_n(points.begin() + static_cast<std::ptrdiff_t>(begin), length,
                  points.begin() + static_cast<std::ptrdiff_t>(kept));
      kept += length;
      begin = end;
    }
    points.resize(kept);
  }
  for (const utf8proc_int32_t p : points) append_utf8(out, static_cast<uint32_t>(p));
}

}  // namespace

std::string unicode_normalize(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  // Everything up to a boundary that is followed by another boundary is copied; what lies between goes through the tables.
  size_t copied = 0;         // text[0, copied) is in `out`
  size_t last_boundary = 0;  // start of the latest boundary character at or after `copied`
  size_t i = 0;
  while (i < text.size()) {
    const size_t start = i;
    if (is_boundary(utf8_decode_valid(text, i), form)) {
      last_boundary = start;
      continue;
    }
    // text[last_boundary, i) may interact; extend to the next boundary.
    out += text.substr(copied, last_boundary - copied);
    size_t end = text.size();
    while (i < text.size()) {
      const size_t here = i;
      if (is_boundary(utf8_decode_valid(text, i), form)) {
        end = here;
        break;
      }
    }
    append_normalized(out, text.substr(last_boundary, end - last_boundary), form);
    copied = last_boundary = end;
  }
  out += text.substr(copied);
  return out;
}

bool is_white_space(uint32_t cp) {
  return (cp >= 0x9 && cp <= 0xD) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
         cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool is_mark(uint32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool is_numeric(uint32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_decimal_digit(uint32_t cp) {
  return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool is_letter(uint32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(uint32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT;
}

bool is_lower(uint32_t cp) {
  return category(cp) == UTF8PROC_CATEGORY_LL;
}

bool is_punctuation(uint32_t cp) {
  if (cp < 0x80)
    return (cp >= 0x21 && cp <= 0x2F) || (cp >= 0x3A && cp <= 0x40) || (cp >= 0x5B && cp <= 0x60) || (cp >= 0x7B && cp <= 0x7E);
  const utf8proc_category_t c = category(cp);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_word_character(uint32_t cp) {
  if (cp == 0x200C || cp == 0x200D) return true;
  // Alphabetic characters outside L, M and Nl: circled and squared letters.
  if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
      (cp >= 0x1F170 && cp <= 0x1F189)) {
    return true;
  }
  const utf8proc_category_t c = category(cp);
  return is_letter(cp) || is_mark(cp) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC;
}

bool is_printable(uint32_t cp) {
  if (cp == 0x20) return true;
  switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void append_lower(std::string& out, uint32_t cp) {
  if (cp == 0x130) {
    out += "i\xCC\x87";  // i and a combining dot
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(cp))));
}

void append_upper(std::string& out, uint32_t cp) {
  if (cp == 0xDF) {
    out += "SS";
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(cp))));
}

}  // namespace pointsman
