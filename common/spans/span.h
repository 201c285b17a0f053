// A span of a timeline with its names, and how it is written as a Chrome trace event of one line.
//
// A timeline is a JSON list of Chrome trace events, each on a line of its own. Its first lines are metadata: the
// process is the host, a thread is a class, and an event called "tensorlane" says which clock was read. Readers of the
// format accept a list without its end, so a file that is still written can be opened, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorlane::spans {

// As ports::TraceSpan::Phase.
enum class Phase : std::uint8_t { kWaitForData, kOperation, kQueue, kReduce, kCopy, kReceive };
inline constexpr std::size_t kPhases = 6;
// What Horovod's timeline calls it, where there is such a name.
const char* phase_name(Phase phase);

// Whose spans they are, and by which clock.
struct Source {
  std::string host;                      // the trace's process name
  int sort_index = 0;                    // its number of a process: order of hosts
  std::vector<std::string> class_names;  // data classes by ClassId; any other one is "control"
  std::vector<int> class_dscps;
  std::string boot;                   // the kernel's name for this run of the machine; empty: unknown
  std::int64_t wall_clock_ahead = 0;  // of the clock of spans, in nanoseconds
};

struct Span {
  std::int64_t begin = 0, length = 0;  // nanoseconds
  Phase phase{};
  std::uint8_t cls = 0, rail = 0;
  bool eager = false;
  std::uint32_t tensor_id = 0, epoch = 0, slice = 0, grant = 0, offset = 0, bytes = 0;
  std::uint64_t sequence = 0;
  // In any encoding; they live elsewhere.
  std::string_view tensor, job, peer;
};

// Whether it is one end of a transport operation.
constexpr bool has_peer(Phase phase) {
  return phase == Phase::kQueue || phase == Phase::kReceive;
}

// Microseconds, as the format wants them: exact, also of the 16 digits that the wall clock has.
std::string micros(std::int64_t ns);
// As a JSON string: what is no UTF-8 reads as U+FFFD.
std::string json_text(std::string_view text);

// The first lines of a timeline, and the last one.
std::string header(const Source& source);
inline constexpr std::string_view kEnd = "{}]\n";
// Appends the line of an event.
void append_event(const Source& source, const Span& span, std::string* text);

}  // namespace tensorlane::spans
