// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/detokenizer.h"

#include <algorithm>

namespace pointsman {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), stream_(tokenizer.decoder_) {
  for (const std::string& stop : options_.stop) longest_stop_ = std::max(longest_stop_, stop.size());
}

std::string StreamingDetokenizer::push(int32_t id) {
  if (stopped_ >= 0 || !tokenizer_.contains(id) || (options_.skip_special && tokenizer_.is_special(id))) return {};
  std::string text;
  tokenizer_.push_token(stream_, id, text);
  return release(std::move(text), false);
}

std::string StreamingDetokenizer::flush() {
  std::string text;
  stream_.flush(text);
  if (stopped_ >= 0) return {};
  return release(std::move(text), true);
}

std::string StreamingDetokenizer::release(std::string text, bool at_end) {
  if (longest_stop_ == 0) return text;
  held_ += text;
  size_t first = std::string::npos;
  for (size_t i = 0; i < options_.stop.size(); ++i) {
    const std::string& stop = options_.stop[i];
    if (stop.empty()) continue;
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const bool better = at < first || (at == first && stop.size() > options_.stop[static_cast<size_t>(stopped_)].size());
    if (better) {
      first = at;
      stopped_ = static_cast<int>(i);
    }
  }
  if (stopped_ >= 0) {
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  // Hold the longest end of the text that begins some stop string. Both are UTF-8, so the cut is between characters.
  size_t hold = 0;
  if (!at_end) {
    for (const std::string& stop : options_.stop) {
      for (size_t n = std::min(held_.size(), stop.size() - std::min<size_t>(stop.size(), 1)); n > hold; --n) {
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) {
          hold = n;
          break;
        }
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

}  // namespace pointsman
