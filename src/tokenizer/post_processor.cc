// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/post_processor.h"

#include "base/log.h"
#include "tokenizer/spec.h"

namespace pointsman {
namespace {

constexpr size_t kMaxTemplates = 8;
constexpr size_t kMaxParts = 64;

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Json* section) {
  PostProcessor processor;
  if (section != nullptr && !section->is_null()) PM_RETURN_IF_ERROR(processor.add(*section));
  return processor;
}

Status PostProcessor::add(const Json& component) {
  PM_ASSIGN_OR_RETURN(const std::string type, spec::type_of(component, "post_processor"));
  if (type == "ByteLevel") return ok_status();
  if (type == "Sequence") {
    PM_ASSIGN_OR_RETURN(const Json::Array* parts, spec::get_array(component, "processors"));
    for (const Json& part : *parts) PM_RETURN_IF_ERROR(add(part));
    return ok_status();
  }
  if (type != "TemplateProcessing") {
    return error(StatusCode::kUnsupported, "tokenizer.json: post_processor \"{}\" is not supported", type);
  }
  PM_ASSIGN_OR_RETURN(const Json::Array* single, spec::get_array(component, "single"));
  const Json* tokens = component.find("special_tokens");
  std::vector<Part> parts;
  size_t num_texts = 0;
  for (const Json& item : *single) {
    Part part;
    if (item.find("Sequence") != nullptr) {
      part.is_text = true;
      ++num_texts;
    } else if (const Json* special = item.find("SpecialToken"); special != nullptr) {
      PM_ASSIGN_OR_RETURN(const std::string name, spec::get_string(*special, "id"));
      const Json* token = tokens == nullptr ? nullptr : tokens->find(name);
      if (token == nullptr) return error(StatusCode::kCorrupt, "tokenizer.json: template token \"{}\" is not described", name);
      PM_ASSIGN_OR_RETURN(const Json::Array* ids, spec::get_array(*token, "ids"));
      for (const Json& id : *ids) {
        if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX || part.ids.size() >= kMaxParts) {
          return error(StatusCode::kCorrupt, "tokenizer.json: ids of template token \"{}\"", name);
        }
        part.ids.push_back(static_cast<int32_t>(id.as_int()));
      }
    } else {
      return error(StatusCode::kCorrupt, "tokenizer.json: a template part that is neither Sequence nor SpecialToken");
    }
    parts.push_back(std::move(part));
  }
  // Bounded so that a file cannot multiply the text.
  if (num_texts != 1 || parts.size() > kMaxParts || templates_.size() >= kMaxTemplates) {
    return error(StatusCode::kUnsupported, "tokenizer.json: a template with {} texts and {} parts", num_texts, parts.size());
  }
  templates_.push_back(std::move(parts));
  return ok_status();
}

std::vector<int32_t> PostProcessor::apply(std::vector<int32_t> ids) const {
  for (const std::vector<Part>& parts : templates_) {
    std::vector<int32_t> out;
    out.reserve(ids.size() + 8);
    for (const Part& part : parts) {
      const std::vector<int32_t>& more = part.is_text ? ids : part.ids;
      out.insert(out.end(), more.begin(), more.end());
    }
    ids = std::move(out);
  }
  return ids;
}

std::vector<int32_t> PostProcessor::added_ids() const {
  std::vector<int32_t> out;
  for (const std::vector<Part>& parts : templates_) {
    for (const Part& part : parts) out.insert(out.end(), part.ids.begin(), part.ids.end());
  }
  return out;
}

}  // namespace pointsman
