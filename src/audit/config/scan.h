// SPDX-License-Identifier: Apache-2.0
//
// What the scanners of this folder share.
#pragma once

#include <string>
#include <string_view>

#include "audit/config/document.h"

namespace pointsman::audit::config {

inline constexpr size_t kMaxEntries = 200'000;
inline constexpr int kMaxDepth = 64;
inline constexpr size_t kMaxPath = 300;

void scan_yaml(Document& document);
void scan_json(Document& document);
void scan_toml(Document& document);
void scan_ini(Document& document);
void scan_requirements(Document& document);
void scan_dockerfile(Document& document);
// Environment, pins, images and commands that entries stand for.
void collect(Document& document);

inline bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\f' || c == '\v'; }
std::string_view trim(std::string_view s);
// The span of `part`, which must be a piece of the unit's text.
Span span_of(const Document& document, std::string_view part);
// Adds an entry unless there are too many.
void add(Document& document, std::string path, std::string_view key, std::string value, Span key_span, Span value_span);
// "NCCL_DEBUG": at least four capitals, digits and underscores.
bool is_variable_name(std::string_view name);
// parent.key, or key alone; bounded.
std::string child_path(const std::string& parent, std::string_view key);
std::string index_path(const std::string& parent, size_t index);
// A pip requirement at `span`, added when it is one.
bool add_pin(Document& document, std::string_view text, Span span, std::string_view source);

}  // namespace pointsman::audit::config
