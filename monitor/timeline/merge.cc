#include "monitor/timeline/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "common/base/hash.h"
#include "common/json/json.h"
#include "monitor/timeline/event_reader.h"
#include "monitor/timeline/trace_writer.h"

namespace tensorlane::timeline {
namespace {

constexpr const char* kWhere = "tensorlane timeline merge";
constexpr std::size_t kMostWaiting = std::size_t{1} << 17;         // ends of operations whose other end may still come
constexpr std::size_t kMostClocks = 8192;                          // hosts, each with every boot
constexpr std::uint64_t kProgressEvery = std::uint64_t{16} << 20;  // bytes

// A boot of a host, and what its wall clock was ahead of its own when the first of its files began. Times of all its
// files are by that.
struct Clock {
  std::string host, boot;
  std::optional<std::int64_t> wall_clock_ahead;
  std::int64_t first_process = 0;
};

// What a process of a file is.
struct Process {
  std::string host;
  std::optional<std::size_t> clock;  // none: no line has said which
  std::int64_t correction = 0;       // to add to its times
};

OperationKey key_of(const Event& event, const std::string& from, const std::string& to) {
  const auto hash = [&](std::uint64_t seed) {
    Fnv1a h;
    h.add(seed);
    for (const std::string* text : {&event.job, &from, &to}) h.add_text(*text);
    for (const std::uint64_t number :
         {event.epoch, event.tensor, event.sequence, event.slice, event.offset, event.grant, event.rail})
      h.add(number);
    h.add(event.eager ? std::uint8_t{1} : std::uint8_t{0});
    // The low bits of the hash of nearly equal texts are nearly equal.
    std::uint64_t mixed = h.value() * 0x9e3779b97f4a7c15ull;
    return mixed ^ (mixed >> 32);
  };
  return {hash(1), hash(2)};
}

bool is_send(const Event& event) {
  return event.name == "QUEUE";
}
bool is_end(const Event& event) {
  return !event.peer.empty() && (is_send(event) || event.name == "RECEIVE");
}

class Merge {
 public:
  explicit Merge(const MergeOptions& options) : options_(options) {}
  Result<MergeSummary> run();

 private:
  // One file on its way through.
  struct Stream {
    explicit Stream(EventReader r) : reader(std::move(r)) {}
    EventReader reader;
    std::map<std::int64_t, Process> processes;
    Event event;
    std::int64_t end = 0;  // of the event, by the first host's clock
    std::uint64_t told = 0;
  };
  // An event of a stream that is a span.
  struct Span {
    const Event* event;
    std::size_t clock;
    std::int64_t begin;  // by its own clock
  };
  struct Waiting {
    TraceWriter::Place place;
    bool sent;
  };

  Result<bool> next_span(Stream& stream, Span* span);
  void meet(Stream& stream);
  std::size_t clock_of(const std::string& host, const std::string& boot, std::int64_t process);
  Status look(bool cut);
  Status cut();
  void order_hosts();
  bool wanted(std::int64_t begin, std::int64_t end) const;
  std::int64_t adjusted(const Span& span) const { return span.begin - offsets_[span.clock].offset; }
  Status write();
  void write_span(const Span& span, TraceWriter& writer);
  void find_other_end(const Span& span, const TraceWriter::Place& place, TraceWriter& writer);
  std::string about() const;
  void progress(Stream& stream);

  const MergeOptions& options_;
  std::vector<Clock> clocks_;
  std::vector<Offset> offsets_;
  std::vector<std::size_t> places_;  // by clock: place among the hosts of the trace
  std::int64_t first_ = std::numeric_limits<std::int64_t>::max(), last_ = std::numeric_limits<std::int64_t>::min();
  std::optional<std::int64_t> since_, until_;
  MergeSummary summary_;
  std::unordered_map<OperationKey, Waiting, OperationKeyHash> waiting_;
  std::deque<OperationKey> order_;  // in which they came; some wait no longer
  std::uint64_t done_ = 0, all_ = 0;
};

void Merge::progress(Stream& stream) {
  if (stream.reader.read() < stream.told + kProgressEvery && stream.reader.read() < stream.reader.size()) return;
  done_ += stream.reader.read() - stream.told;
  stream.told = stream.reader.read();
  if (options_.progress) options_.progress(done_, all_);
}

std::size_t Merge::clock_of(const std::string& host, const std::string& boot, std::int64_t process) {
  const auto known = std::ranges::find_if(clocks_, [&](const Clock& c) { return c.host == host && c.boot == boot; });
  if (known != clocks_.end()) return static_cast<std::size_t>(known - clocks_.begin());
  clocks_.push_back({host, boot, {}, process});
  return clocks_.size() - 1;
}

// The first line says the host; the second one, where there is one, which clock.
void Merge::meet(Stream& stream) {
  constexpr std::string_view kHost = "host ";
  const Event& event = stream.event;
  Process& process = stream.processes[event.process];
  if (event.name == "process_name") {
    process = {event.called.starts_with(kHost) ? event.called.substr(kHost.size()) : event.called, {}, 0};
  } else if (event.name == "tensorlane" && !event.host.empty()) {
    const std::size_t clock = clock_of(event.host, event.boot, event.process);
    std::optional<std::int64_t>& ahead = clocks_[clock].wall_clock_ahead;
    if (!ahead) ahead = event.wall_clock_ahead;
    process = {event.host, clock, *ahead - event.wall_clock_ahead};
  }
}

Result<bool> Merge::next_span(Stream& stream, Span* span) {
  while (true) {
    TL_ASSIGN_OR_RETURN(const bool more, stream.reader.next(&stream.event));
    progress(stream);
    if (!more) return false;
    if (stream.event.phase == 'M') meet(stream);
    if (stream.event.phase != 'X') continue;
    const auto process = stream.processes.find(stream.event.process);
    if (process == stream.processes.end() || process->second.host.empty())
      return Status(Code::kInvalidArgument,
                    fmt::format("a span of process {}, of which no line before says the host", stream.event.process),
                    stream.reader.path(), "give the timelines of tensorlaned, from their beginning");
    if (clocks_.size() > kMostClocks)
      return Status(Code::kInvalidArgument, fmt::format("the files tell of more than {} hosts and boots", kMostClocks),
                    stream.reader.path(), "merge fewer files at once");
    Process& of = process->second;
    if (!of.clock) of.clock = clock_of(of.host, {}, stream.event.process);
    if (!offsets_.empty() && *of.clock >= offsets_.size())
      return Status(Code::kUnavailable, "the file was replaced while it was read", stream.reader.path(),
                    "merge again, or a copy of it");
    *span = {&stream.event, *of.clock, stream.event.begin + of.correction};
    return true;
  }
}

bool Merge::wanted(std::int64_t begin, std::int64_t end) const {
  return (!since_ || end >= *since_) && (!until_ || begin <= *until_);
}

// Reads everything once: which hosts there are, how far their clocks are apart, and from when to when they tell of.
// `cut`: of what is wanted alone, by the clocks as they are known so far.
Status Merge::look(bool cut) {
  ClockFit fit;
  std::vector<std::pair<std::int64_t, std::int64_t>> times;  // by clock: first begin, last end
  summary_.truncated.clear();
  for (const std::string& path : options_.files) {
    TL_ASSIGN_OR_RETURN(EventReader reader, EventReader::open(path));
    Stream stream(std::move(reader));
    Span span{};
    while (true) {
      TL_ASSIGN_OR_RETURN(const bool more, next_span(stream, &span));
      if (!more) break;
      const std::int64_t end = span.begin + span.event->length;
      if (cut && !wanted(adjusted(span), adjusted(span) + span.event->length)) continue;
      times.resize(clocks_.size(),
                   {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
      auto& [first, last] = times[span.clock];
      first = std::min(first, span.begin);
      last = std::max(last, end);
      if (!is_end(*span.event)) continue;
      const std::string& self = clocks_[span.clock].host;
      const bool sent = is_send(*span.event);
      fit.add(key_of(*span.event, sent ? self : span.event->peer, sent ? span.event->peer : self), sent, span.clock,
              end);
    }
    if (stream.reader.truncated()) summary_.truncated.push_back(path);
  }
  const std::vector<Offset> offsets = fit.fit(clocks_.size());
  const auto known = [](const std::vector<Offset>& all) { return std::ranges::count(all, true, &Offset::matched); };
  if (!cut || known(offsets) >= known(offsets_)) {
    offsets_ = offsets;
    summary_.one_in = fit.one_in();
    summary_.clocks_moved = fit.moved();
  }
  first_ = std::numeric_limits<std::int64_t>::max();
  last_ = std::numeric_limits<std::int64_t>::min();
  for (std::size_t c = 0; c < times.size(); ++c) {
    if (times[c].first > times[c].second) continue;
    first_ = std::min(first_, times[c].first - offsets_[c].offset);
    last_ = std::max(last_, times[c].second - offsets_[c].offset);
  }
  if (first_ <= last_) return {};
  return {Code::kInvalidArgument, cut ? "no span is in this time" : "there is no span in these files", kWhere,
          cut ? "widen --since, --until or --last" : "give timelines of jobs that have sent something"};
}

Status Merge::cut() {
  since_ = options_.since;
  until_ = options_.until;
  if (options_.last) since_ = std::max(since_.value_or(0), last_ - options_.last->value);
  return since_ || until_ ? look(true) : Status();
}

// In the order of the fabric file, as the numbers of their processes are.
void Merge::order_hosts() {
  std::vector<std::size_t> order(clocks_.size());
  for (std::size_t c = 0; c < order.size(); ++c) order[c] = c;
  std::ranges::sort(order, {}, [&](std::size_t c) { return std::pair(clocks_[c].first_process, clocks_[c].host); });
  places_.resize(clocks_.size());
  for (std::size_t place = 0; place < order.size(); ++place) places_[order[place]] = place;
  for (const std::size_t c : order) {
    MergeSummary::Host host{clocks_[c].host, clocks_[c].boot, offsets_[c], 0};
    host.clock.reference = places_[offsets_[c].reference];
    summary_.hosts.push_back(std::move(host));
  }
}

std::string Merge::about() const {
  nlohmann::json hosts = nlohmann::json::array();
  for (const MergeSummary::Host& host : summary_.hosts) {
    const bool matched = host.clock.matched;
    hosts.push_back({{"host", host.name},
                     {"clock", matched ? "matched operations" : "wall clock"},
                     {"reference", summary_.hosts[host.clock.reference].name},
                     {"offset_ns", host.clock.offset},
                     {"error_ns", matched ? nlohmann::json(host.clock.error) : nlohmann::json()},
                     {"matched_operations", host.clock.operations}});
  }
  return nlohmann::json{{"program", "tensorlane timeline merge"}, {"begin_unix_ns", summary_.begin}, {"clocks", hosts}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The two ends of an operation find each other, whichever comes first. What has waited for the longest is forgotten.
void Merge::find_other_end(const Span& span, const TraceWriter::Place& place, TraceWriter& writer) {
  const std::string& self = clocks_[span.clock].host;
  const bool sent = is_send(*span.event);
  const OperationKey key = key_of(*span.event, sent ? self : span.event->peer, sent ? span.event->peer : self);
  const auto other = waiting_.find(key);
  if (other != waiting_.end() && other->second.sent != sent) {
    const TraceWriter::Place& from = sent ? place : other->second.place;
    const TraceWriter::Place& to = sent ? other->second.place : place;
    writer.write_arrow(from, to);
    ++summary_.arrows;
    if (to.end < from.end) ++summary_.backward;
    waiting_.erase(other);
    return;
  }
  if (other != waiting_.end()) return;  // the same end once more
  waiting_.emplace(key, Waiting{place, sent});
  order_.push_back(key);
  while (waiting_.size() > kMostWaiting || order_.size() > 2 * kMostWaiting) {
    summary_.alone += waiting_.erase(order_.front());
    order_.pop_front();
  }
}

void Merge::write_span(const Span& span, TraceWriter& writer) {
  const std::int64_t begin = adjusted(span);
  const std::size_t place = places_[span.clock];
  const Event& event = *span.event;
  const TraceWriter::Place written =
      writer.write({place + 1, event.name, event.category, event.args, event.thread, begin - first_, event.length});
  ++summary_.spans;
  ++summary_.hosts[place].spans;
  if (is_end(event)) find_other_end(span, written, writer);
}

// All files at once, in the order of the ends of their spans.
Status Merge::write() {
  TL_ASSIGN_OR_RETURN(TraceWriter writer, TraceWriter::create(options_.out, about()));
  for (std::size_t h = 0; h < summary_.hosts.size(); ++h) writer.name_host(h + 1, summary_.hosts[h].name);
  std::vector<Stream> streams;
  std::vector<Span> spans(options_.files.size());
  using Turn = std::pair<std::int64_t, std::size_t>;  // end of its next span, place in `streams`
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  const auto advance = [&](std::size_t s) -> Status {
    while (true) {
      TL_ASSIGN_OR_RETURN(const bool more, next_span(streams[s], &spans[s]));
      if (!more) return {};
      const std::int64_t end = adjusted(spans[s]) + spans[s].event->length;
      if (!wanted(adjusted(spans[s]), end)) continue;
      turns.emplace(end, s);
      return {};
    }
  };
  streams.reserve(options_.files.size());
  for (const std::string& path : options_.files) {
    TL_ASSIGN_OR_RETURN(EventReader reader, EventReader::open(path));
    streams.emplace_back(std::move(reader));
    TL_RETURN_IF_ERROR(advance(streams.size() - 1));
  }
  while (!turns.empty() && !writer.failed()) {
    const std::size_t s = turns.top().second;
    turns.pop();
    write_span(spans[s], writer);
    TL_RETURN_IF_ERROR(advance(s));
  }
  summary_.alone += waiting_.size();
  summary_.crowded = writer.crowded();
  return writer.finish();
}

Result<MergeSummary> Merge::run() {
  const bool cuts = options_.since || options_.until || options_.last;
  for (auto file = options_.files.begin(); file != options_.files.end(); ++file) {
    const std::string& path = *file;
    std::error_code error;
    if (std::any_of(options_.files.begin(), file, [&](const std::string& other) {
          return other == path || std::filesystem::equivalent(other, path, error);
        }))
      return Status(Code::kInvalidArgument, "the file is given twice: its spans would count twice", path,
                    "give each file once");
    if (std::filesystem::equivalent(path, options_.out, error))
      return Status(Code::kInvalidArgument, "the merged timeline would replace one that it is made of", path,
                    "give another path with -o");
    TL_ASSIGN_OR_RETURN(const EventReader reader, EventReader::open(path));
    all_ += reader.size() * (cuts ? 3 : 2);
  }
  TL_RETURN_IF_ERROR(look(false));
  TL_RETURN_IF_ERROR(cut());
  order_hosts();
  summary_.begin = first_;
  TL_RETURN_IF_ERROR(write());
  return std::move(summary_);
}

}  // namespace

Result<MergeSummary> merge(const MergeOptions& options) {
  return Merge(options).run();
}

}  // namespace tensorlane::timeline
