// SPDX-License-Identifier: Apache-2.0
//
// The "post_processor" section: which special tokens surround a text when the caller asks for them. Known: Sequence, ByteLevel
// (only moves offsets, which Pointsman has none of), TemplateProcessing (its template for a single text).
//
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman {

class PostProcessor {
 public:
  // `section` may be null or JSON null. kUnsupported names an unknown type.
  static Result<PostProcessor> parse(const Json* section);
  // True when a template decides about special tokens.
  bool has_template() const { return !templates_.empty(); }
  std::vector<int32_t> apply(std::vector<int32_t> ids) const;
  // Ids that the templates add; to be checked against the vocabulary.
  std::vector<int32_t> added_ids() const;

 private:
  // A part of a template: the text itself, or fixed ids.
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids;
  };
  Status add(const Json& component);
  std::vector<std::vector<Part>> templates_;
};

}  // namespace pointsman
