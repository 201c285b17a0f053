#include "monitor/timeline/trace_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/files/careful.h"
#include "common/spans/span.h"

namespace tensorlane::timeline {
namespace {

constexpr std::size_t kPiece = std::size_t{256} << 10;
// The order of kinds among the rows of a class. A kind that is none of these comes last.
constexpr std::array<std::string_view, 4> kKinds = {"operations", "QUEUE", "RECEIVE", "work"};

std::string_view kind_of(std::string_view name) {
  if (name == "WAIT_FOR_DATA" || name == "ALLREDUCE") return kKinds[0];
  return name == "REDUCE" || name == "MEMCPY" ? kKinds[3] : name;
}

}  // namespace

Result<TraceWriter> TraceWriter::create(const std::string& path, const std::string& about) {
  TraceWriter writer;
  TL_ASSIGN_OR_RETURN(writer.file_, files::create(path, "the merged timeline"));
  writer.path_ = path;
  writer.text_ = "{\"displayTimeUnit\":\"ns\",\"otherData\":" + about + ",\"traceEvents\":[\n";
  return writer;
}

TraceWriter::TraceWriter(TraceWriter&& other) noexcept
    : path_(std::move(other.path_)),
      text_(std::move(other.text_)),
      file_(std::exchange(other.file_, -1)),
      failed_(other.failed_),
      empty_(other.empty_),
      error_(other.error_),
      rows_(std::move(other.rows_)),
      rows_of_(std::move(other.rows_of_)),
      crowded_(other.crowded_),
      arrows_(other.arrows_) {}

TraceWriter::~TraceWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(path_.c_str());
}

void TraceWriter::flush() {
  for (std::size_t at = 0; at < text_.size() && !failed_;) {
    const ssize_t count = ::write(file_, text_.data() + at, text_.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      error_ = count == 0 ? ENOSPC : errno;
      failed_ = true;
      break;
    }
    at += static_cast<std::size_t>(count);
  }
  text_.clear();
}

void TraceWriter::put(std::string_view event) {
  if (!std::exchange(empty_, false)) text_ += ",\n";
  text_ += event;
  if (text_.size() >= kPiece) flush();
}

void TraceWriter::name_host(std::size_t host, const std::string& name) {
  put(fmt::format("{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"tid\":0,\"ts\":0,\"args\":{{\"name\":{}}}}}",
                  host, spans::json_text("host " + name)));
  put(fmt::format(
      "{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{0},\"tid\":0,\"ts\":0,\"args\":{{\"sort_index\":{0}}}}}",
      host));
}

// The first row that is free when the span begins: spans come by their ends, so nothing begins there later.
std::size_t TraceWriter::find_row(const Span& span, std::int64_t end) {
  const std::string_view kind = kind_of(span.name);
  std::vector<Row>& rows = rows_[{span.host, std::string(span.category), std::string(kind)}];
  auto row = std::ranges::find_if(rows, [&](const Row& r) { return r.end <= span.begin; });
  if (row == rows.end() && rows.size() >= kMostRows) {
    ++crowded_;
    row = std::ranges::min_element(rows, {}, &Row::end);
  } else if (row == rows.end()) {
    if (rows_of_.size() <= span.host) rows_of_.resize(span.host + 1);
    const std::size_t number = ++rows_of_[span.host];
    const auto order = std::ranges::find(kKinds, kind) - kKinds.begin();
    put(fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"ts\":0,\"args\":{{\"name\":{}}}}}",
                    span.host, number, spans::json_text(fmt::format("{} {}", span.category, kind))));
    put(fmt::format(
        "{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"ts\":0,\"args\":{{\"sort_index\":{}}}}}",
        span.host, number, (span.cls * 8 + order) * static_cast<std::int64_t>(kMostRows) + std::ssize(rows)));
    rows.push_back({number, 0});
    row = std::prev(rows.end());
  }
  row->end = std::max(row->end, end);
  return row->number;
}

// A span without a length has a nanosecond: arrows hold to what has a length.
TraceWriter::Place TraceWriter::write(const Span& span) {
  const std::int64_t length = std::max<std::int64_t>(span.length, 1);
  Place place{span.host, 0, span.begin, span.begin + length};
  place.row = find_row(span, place.end);
  put(fmt::format("{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{}{}{}}}",
                  spans::json_text(span.name), spans::json_text(span.category), place.host, place.row,
                  spans::micros(span.begin), spans::micros(length), span.args.empty() ? "" : ",", span.args));
  return place;
}

void TraceWriter::write_arrow(const Place& from, const Place& to) {
  const std::uint64_t id = ++arrows_;
  const auto end = [&](const char* what, const Place& place) {
    put(fmt::format("{{\"name\":\"moves\",\"cat\":\"flow\",{},\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{}}}", what, id,
                    place.host, place.row, spans::micros(place.end - 1)));
  };
  end("\"ph\":\"s\"", from);
  end("\"ph\":\"f\",\"bp\":\"e\"", to);
}

Status TraceWriter::finish() {
  text_ += "\n]}\n";
  flush();
  if (!failed_ && ::close(std::exchange(file_, -1)) == 0) return {};
  if (!failed_) error_ = errno;
  return {Code::kUnavailable, fmt::format("cannot write the merged timeline: {}", std::strerror(error_)), path_,
          "free space on the disk or choose another path"};
}

}  // namespace tensorlane::timeline
