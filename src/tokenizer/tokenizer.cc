// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace pointsman {

struct EncodeScratch {
  explicit EncodeScratch(const Bpe& bpe) : session(bpe) {}
  RegexMatcher matcher;
  Bpe::Session session;
  Pieces pieces;
  std::vector<Segment> segments;
};

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (const size_t good = utf8_valid_prefix(text); good != text.size()) {
    if (!options.replace_invalid) {
      return error(StatusCode::kInvalidArgument, "text is not UTF-8 at byte {} (0x{:02x})", good,
                   static_cast<unsigned>(static_cast<unsigned char>(text[good])));
    }
    append_utf8_lossy(repaired, text);
    text = repaired;
  }
  if (text.size() > kMaxTextBytes) {
    return error(StatusCode::kInvalidArgument, "text of {} bytes, more than {}", text.size(), kMaxTextBytes);
  }

  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  EncodeScratch scratch(bpe_);
  if (options.parse_added && !raw_matcher_.empty()) {
    std::vector<Segment> segments;
    raw_matcher_.split(text, options.parse_special, segments);
    for (const Segment& s : segments) {
      if (s.id >= 0) {
        ids.push_back(s.id);
      } else {
        PM_RETURN_IF_ERROR(encode_text(text.substr(s.begin, s.end - s.begin), s.begin == 0, options, scratch, ids));
      }
    }
  } else {
    PM_RETURN_IF_ERROR(encode_text(text, true, options, scratch, ids));
  }

  if (!options.add_special_tokens) return ids;
  if (post_processor_.has_template()) return post_processor_.apply(std::move(ids));
  if (add_bos_ && special_tokens_.bos) ids.insert(ids.begin(), *special_tokens_.bos);
  if (add_eos_ && special_tokens_.eos) ids.push_back(*special_tokens_.eos);
  return ids;
}

Status Tokenizer::encode_text(std::string_view text, bool at_start, EncodeOptions options, EncodeScratch& scratch,
                              std::vector<int32_t>& out) const {
  if (text.empty()) return ok_status();
  std::string normalized;
  if (!normalizer_.is_identity()) {
    normalized = std::string(text);
    PM_RETURN_IF_ERROR(normalizer_.apply(normalized, at_start, scratch.matcher));
    text = normalized;
  }
  scratch.segments.clear();
  if (options.parse_added && !normalized_matcher_.empty()) {
    normalized_matcher_.split(text, options.parse_special, scratch.segments);
  } else if (!text.empty()) {
    scratch.segments.push_back({0, text.size(), -1});
  }
  const std::vector<bool>* forbidden = options.parse_special && options.parse_added ? nullptr : &is_special_;
  for (const Segment& s : scratch.segments) {
    if (s.id >= 0) {
      out.push_back(s.id);
      continue;
    }
    PM_RETURN_IF_ERROR(
        pre_tokenizer_.split(text.substr(s.begin, s.end - s.begin), at_start && s.begin == 0, scratch.matcher, scratch.pieces));
    for (size_t i = 0; i < scratch.pieces.spans.size(); ++i) scratch.session.encode(scratch.pieces[i], forbidden, out);
  }
  return ok_status();
}

std::string Tokenizer::text_in_file(int32_t id) const {
  const std::string_view text = vocabulary_.text(id);
  return byte_level_ && !vocabulary_.is_raw(id) ? bytes_to_alphabet(text) : std::string(text);
}

void Tokenizer::push_token(DecodeStream& stream, int32_t id, std::string& out) const {
  if (byte_level_ && decoder_.is_byte_level()) {
    stream.push_bytes(vocabulary_.text(id), out);
  } else {
    stream.push(text_in_file(id), out);
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  DecodeStream stream(decoder_);
  for (const int32_t id : ids) {
    if (!vocabulary_.contains(id) || (skip_special && is_special(id))) continue;
    push_token(stream, id, out);
  }
  stream.flush(out);
  return out;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (!vocabulary_.contains(id)) return {};
  if (byte_level_ && decoder_.is_byte_level()) return std::string(vocabulary_.text(id));
  std::string out;
  decoder_.token_bytes(text_in_file(id), false, out);
  return out;
}

std::string Tokenizer::token_text(int32_t id) const {
  for (const AddedToken& added : added_tokens_) {
    if (added.id == id) return added.content;
  }
  return vocabulary_.contains(id) ? text_in_file(id) : std::string();
}

int32_t Tokenizer::find_in_model(std::string_view token) const {
  if (!byte_level_) return vocabulary_.find(token);
  std::string bytes;
  return alphabet_to_bytes(token, bytes) ? vocabulary_.find(bytes, false) : vocabulary_.find(token, true);
}

int32_t Tokenizer::find(std::string_view token) const {
  for (const AddedToken& added : added_tokens_) {
    if (added.content == token) return added.id;
  }
  return utf8_valid_prefix(token) == token.size() ? find_in_model(token) : -1;
}

uint64_t Tokenizer::memory_bytes() const {
  uint64_t total = sizeof(*this) + vocabulary_.memory_bytes() + bpe_.memory_bytes() + is_special_.capacity() / 8 +
                   normalizer_.memory_bytes() + pre_tokenizer_.memory_bytes() + decoder_.memory_bytes() +
                   raw_matcher_.memory_bytes() + normalized_matcher_.memory_bytes() +
                   added_tokens_.capacity() * sizeof(AddedToken);
  for (const AddedToken& added : added_tokens_) total += added.content.capacity() + 1;
  return total;
}

// Half as much again as the file covers vocabularies written without any white space (28 + 24 bytes of tables for some 33 bytes
// of text per token and merge); the constant covers the word cache, compiled patterns, and files of toy size.
uint64_t Tokenizer::load_peak_bytes(uint64_t tokenizer_json_bytes) {
  return tokenizer_json_bytes + tokenizer_json_bytes / 2 + (uint64_t{4} << 20);
}

}  // namespace pointsman
