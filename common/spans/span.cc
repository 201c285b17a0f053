#include "common/spans/span.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iterator>

#include "common/json/json.h"

namespace tensorlane::spans {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kWaitForData:
      return "WAIT_FOR_DATA";
    case Phase::kOperation:
      return "ALLREDUCE";
    case Phase::kQueue:
      return "QUEUE";
    case Phase::kReduce:
      return "REDUCE";
    case Phase::kCopy:
      return "MEMCPY";
    case Phase::kReceive:
      return "RECEIVE";
  }
  return "UNKNOWN";
}

std::string micros(std::int64_t ns) {
  const std::int64_t part = std::abs(ns % 1000);
  return fmt::format("{}{}.{:03}", ns < 0 && ns > -1000 ? "-" : "", ns / 1000, part);
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string header(const Source& source) {
  std::string text = fmt::format("[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}},\n",
                                 source.sort_index, json_text("host " + source.host));
  text += fmt::format(
      "{{\"name\":\"tensorlane\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"host\":{},\"boot\":{},\"wall_clock_ahead_ns\":{}}"
      "}"
      "}},\n",
      source.sort_index, json_text(source.host), json_text(source.boot), source.wall_clock_ahead);
  for (std::size_t c = 0; c < source.class_names.size(); ++c) {
    text += fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}},\n",
                        source.sort_index, c,
                        json_text(fmt::format("class {} (DSCP {})", source.class_names[c], source.class_dscps[c])));
  }
  return text;
}

void append_event(const Source& source, const Span& span, std::string* text) {
  const std::string cls = json_text(span.cls < source.class_names.size() ? source.class_names[span.cls] : "control");
  const auto out = std::back_inserter(*text);
  fmt::format_to(out,
                 "{{\"name\":\"{}\",\"cat\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{"
                 "\"tensor\":{},\"job\":{},\"epoch\":{},\"sequence\":{},\"class\":{},\"dscp\":{},\"bytes\":{}",
                 phase_name(span.phase), cls, source.sort_index, span.cls, micros(span.begin + source.wall_clock_ahead),
                 micros(span.length), json_text(span.tensor), json_text(span.job), span.epoch, span.sequence, cls,
                 span.cls < source.class_dscps.size() ? source.class_dscps[span.cls] : -1, span.bytes);
  if (has_peer(span.phase)) {
    fmt::format_to(out,
                   ",\"peer\":{},\"rail\":{},\"tensor_id\":{},\"slice\":{},\"offset\":{},\"grant\":{},\"eager\":{}",
                   json_text(span.peer), span.rail, span.tensor_id, span.slice, span.offset, span.grant, span.eager);
  }
  *text += "}},\n";
}

}  // namespace tensorlane::spans
