// Writes a Chrome trace that Perfetto shows whole: it drops spans of a thread that overlap without one holding the
// other, so each kind of span of a class has as many rows as there are spans at once.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/base/status.h"

namespace tensorlane::timeline {

// One thread.
class TraceWriter {
 public:
  static constexpr std::size_t kMostRows = 512;  // of one kind of span, class and host

  // `about`: JSON, for `otherData`. Errors: those of files::create.
  static Result<TraceWriter> create(const std::string& path, const std::string& about);
  ~TraceWriter();  // without finish(), the file goes
  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) = delete;

  void name_host(std::size_t host, const std::string& name);
  // Where a span is shown, and from when to when, in nanoseconds.
  struct Place {
    std::size_t host = 0, row = 0;
    std::int64_t begin = 0, end = 0;
  };
  struct Span {
    std::size_t host = 0;
    std::string_view name, category, args;  // args: text, with the key
    std::int64_t cls = 0;                   // the order of classes
    std::int64_t begin = 0, length = 0;
  };
  Place write(const Span& span);
  // From the end of one span to the end of another, which are both written.
  void write_arrow(const Place& from, const Place& to);
  // Errors: kUnavailable.
  Status finish();
  std::uint64_t crowded() const { return crowded_; }
  bool failed() const { return failed_; }

 private:
  struct Row {
    std::size_t number;
    std::int64_t end;
  };
  TraceWriter() = default;
  std::size_t find_row(const Span& span, std::int64_t end);
  void put(std::string_view event);
  void flush();

  std::string path_, text_;
  int file_ = -1;
  bool failed_ = false, empty_ = true;
  int error_ = 0;
  std::map<std::tuple<std::size_t, std::string, std::string>, std::vector<Row>> rows_;  // by host, category, kind
  std::vector<std::size_t> rows_of_;                                                    // by host: how many
  std::uint64_t crowded_ = 0, arrows_ = 0;
};

}  // namespace tensorlane::timeline
