// Reads the events of a timeline, one after the other: of a file that a daemon writes, has written, or has saved.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace tensorlane::timeline {

// An event; fields that it does not have are empty, or 0.
struct Event {
  char phase = 0;  // ph: 'X' a span, 'M' metadata
  std::string name, category;
  std::int64_t process = 0, thread = 0;
  std::int64_t begin = 0, length = 0;  // nanoseconds: ts, dur
  // Of args:
  std::string job, peer, host, boot;
  std::string called;                 // of metadata: what a process or thread is called
  std::int64_t wall_clock_ahead = 0;  // nanoseconds
  std::uint64_t epoch = 0, sequence = 0, tensor = 0, slice = 0, offset = 0, grant = 0, rail = 0;
  bool eager = false;
  std::string_view args;  // as they stand there, with the key; until the next event is read
};

// A file is a JSON list with each event on a line of its own, and may lack its end: its last line, too, may be cut off.
// One thread.
class EventReader {
 public:
  static constexpr std::size_t kMostLine = std::size_t{1} << 20;

  // Errors: kNotFound, kUnavailable (it cannot be read), kInvalidArgument (no timeline), with the path.
  static Result<EventReader> open(const std::string& path);

  // False at the end. Errors: kInvalidArgument for a line that is no event, with the path, the line and the byte.
  Result<bool> next(Event* event);
  const std::string& path() const { return path_; }
  std::uint64_t read() const { return at_; }  // bytes so far
  std::uint64_t size() const { return size_; }
  bool truncated() const { return truncated_; }  // it lacked its end; known at the end

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  EventReader() = default;
  bool read_line();

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string line_;
  std::uint64_t at_ = 0, size_ = 0, number_ = 0;  // number of the line
  bool ended_ = false, cut_ = false, truncated_ = false;
};

}  // namespace tensorlane::timeline
