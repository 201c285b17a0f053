// Spans in few bytes, for a daemon's answer: a line of JSON with the source and the names, then a line of numbers for
// each span. It is a tenth of the same spans as events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/spans/span.h"

namespace tensorlane::spans {

class Packer {
 public:
  // Its names may go when this returns.
  void add(const Span& span);
  // `left_out`: how many older spans there are beside those that were added. The object is empty afterwards.
  std::string take(const Source& source, std::uint64_t left_out);
  // About what take() would return.
  std::size_t bytes() const { return rows_.size() + name_bytes_; }

 private:
  std::size_t number_of(std::string_view name);

  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> numbers_;  // of names_
  std::string rows_;
  std::size_t name_bytes_ = 0;
  std::int64_t last_ = 0;  // begin of the span before
};

struct Unpacked {
  Source source;
  std::vector<std::string> names;  // what the spans' names point into
  std::vector<Span> spans;         // as they were added
  std::uint64_t left_out = 0;
};

// Errors: kCorrupt with the line, for what no Packer has written.
Result<Unpacked> unpack(std::string_view text);

}  // namespace tensorlane::spans
