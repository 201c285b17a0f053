#include "monitor/timeline/event_reader.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "common/json/json.h"

namespace tensorlane::timeline {
namespace {

constexpr const char* kFix = "give the timelines of tensorlaned, or what `tensorlane timeline save` wrote";
constexpr std::string_view kArgs = ",\"args\":";

// Nanoseconds of a number of microseconds as it is written, exactly, where it has no exponent.
std::int64_t nanoseconds_of(const std::string& text, double value) {
  std::int64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [point, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc() || point == end || *point != '.') return std::llround(value * 1000);
  std::int64_t part = 0;
  int digits = 0;
  const char* at = point + 1;
  for (; at != end && *at >= '0' && *at <= '9'; ++at, ++digits) {
    if (digits < 3) part = part * 10 + (*at - '0');
  }
  if (at != end) return std::llround(value * 1000);
  for (; digits < 3; ++digits) part *= 10;
  return whole * 1000 + (text.front() == '-' ? -part : part);
}

// Fills an event from a line, without a tree of it.
class Fields final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Fields(Event& event) : event_(event) {}

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (depth_ == 2 && key_ == "eager") event_.eager = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (is_time() && (value > kMostMicroseconds || value < -kMostMicroseconds)) return refuse("is no time");
    return number(value, is_time() ? value * 1000 : 0);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (is_time() && value > static_cast<number_unsigned_t>(kMostMicroseconds)) return refuse("is no time");
    return number_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!(std::abs(value) <= static_cast<double>(kMostMicroseconds))) return refuse("is too large a number");
    return number(static_cast<std::int64_t>(value), is_time() ? nanoseconds_of(text, value) : 0);
  }
  bool string(string_t& value) override {
    if (is_time() || (depth_ == 1 && (key_ == "pid" || key_ == "tid"))) return refuse("is text, not a number");
    if (std::string* field = text_field()) field->swap(value);
    if (depth_ == 1 && key_ == "ph" && value.size() == 1) event_.phase = value.front();
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 2) in_args_ = key_ == "args";
    return true;
  }
  bool key(string_t& value) override {
    key_.swap(value);
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return depth_++ > 0; }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& why) override {
    position_ = position;
    why_ = why.what();
    return false;
  }
  std::size_t position() const { return position_; }
  std::string why() const { return why_; }

 private:
  static constexpr std::int64_t kMostMicroseconds = 9'000'000'000'000'000;  // as nanoseconds they fit

  bool is_time() const { return depth_ == 1 && (key_ == "ts" || key_ == "dur"); }
  bool refuse(const char* why) {
    why_ = fmt::format("its '{}' {}", key_, why);
    return false;
  }
  std::string* text_field() {
    if (depth_ == 1) return key_ == "name" ? &event_.name : key_ == "cat" ? &event_.category : nullptr;
    if (depth_ != 2 || !in_args_) return nullptr;
    if (key_ == "job") return &event_.job;
    if (key_ == "peer") return &event_.peer;
    if (key_ == "host") return &event_.host;
    if (key_ == "boot") return &event_.boot;
    return key_ == "name" ? &event_.called : nullptr;
  }
  bool number(std::int64_t value, std::int64_t as_microseconds) {
    const auto count = static_cast<std::uint64_t>(value);
    if (depth_ == 1) {
      if (key_ == "ts") event_.begin = as_microseconds;
      if (key_ == "dur") event_.length = as_microseconds;
      if (key_ == "pid") event_.process = value;
      if (key_ == "tid") event_.thread = value;
    } else if (depth_ == 2 && in_args_) {
      if (key_ == "epoch") event_.epoch = count;
      if (key_ == "sequence") event_.sequence = count;
      if (key_ == "tensor_id") event_.tensor = count;
      if (key_ == "slice") event_.slice = count;
      if (key_ == "offset") event_.offset = count;
      if (key_ == "grant") event_.grant = count;
      if (key_ == "rail") event_.rail = count;
      if (key_ == "wall_clock_ahead_ns") event_.wall_clock_ahead = value;
    }
    return true;
  }

  Event& event_;
  std::string key_;
  int depth_ = 0;
  bool in_args_ = false;
  std::size_t position_ = 0;
  std::string why_ = "no object";
};

void clear(Event* event) {
  event->phase = 0;
  for (std::string* text :
       {&event->name, &event->category, &event->job, &event->peer, &event->host, &event->boot, &event->called})
    text->clear();
  event->process = event->thread = event->begin = event->length = event->wall_clock_ahead = 0;
  event->epoch = event->sequence = event->tensor = event->slice = event->offset = event->grant = event->rail = 0;
  event->eager = false;
  event->args = {};
}

// Without blanks at its end and without the comma between events.
std::string_view bare(std::string_view line) {
  while (!line.empty() && std::strchr(" \t\r\n", line.back()) != nullptr) line.remove_suffix(1);
  if (!line.empty() && line.back() == ',') line.remove_suffix(1);
  return line;
}

}  // namespace

Result<EventReader> EventReader::open(const std::string& path) {
  EventReader reader;
  reader.path_ = path;
  reader.file_.reset(std::fopen(path.c_str(), "re"));
  struct stat info {};
  if (reader.file_ == nullptr || fstat(fileno(reader.file_.get()), &info) != 0)
    return Status(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  fmt::format("cannot read the timeline: {}", std::strerror(errno)), path, kFix);
  if (!S_ISREG(info.st_mode))
    return Status(Code::kInvalidArgument, "cannot read the timeline: it is no regular file", path, kFix);
  reader.size_ = static_cast<std::uint64_t>(info.st_size);
  const bool read = reader.read_line();
  if (!read || bare(reader.line_) != "[")
    return Status(Code::kInvalidArgument,
                  read ? "no timeline: it does not begin with a list" : "no timeline: it is empty", path + ":1", kFix);
  return reader;
}

// False at the end of the file. cut_: the line lacks its end, or is too long.
bool EventReader::read_line() {
  line_.clear();
  cut_ = true;
  for (int c = 0; line_.size() < kMostLine && (c = getc_unlocked(file_.get())) != EOF;) {
    line_ += static_cast<char>(c);
    if (c == '\n') {
      cut_ = false;
      break;
    }
  }
  at_ += line_.size();
  ++number_;
  return !line_.empty();
}

Result<bool> EventReader::next(Event* event) {
  while (read_line()) {
    const std::string_view line = bare(line_);
    if (line == "]" || line == "{}]") {
      ended_ = true;
      continue;
    }
    if (line.empty() || line == "[" || line == "{}") continue;
    ended_ = false;
    clear(event);
    Fields fields(*event);
    if (nlohmann::json::sax_parse(line.begin(), line.end(), &fields)) {
      const std::size_t args = line.find(kArgs);
      if (args != std::string_view::npos) event->args = line.substr(args + 1, line.size() - args - 2);
      return true;
    }
    if (cut_ && line_.size() < kMostLine) break;  // its writer has not come further
    const std::string place = fmt::format("{}:{}, byte {}", path_, number_, at_ - line_.size() + fields.position());
    if (line_.size() >= kMostLine)
      return Status(Code::kInvalidArgument, fmt::format("no event of a timeline: longer than {} bytes", kMostLine),
                    place, kFix);
    const std::string why = fields.why();
    const std::size_t colon = why.find("] ");
    return Status(Code::kInvalidArgument,
                  "no event of a timeline: " + (colon == std::string::npos ? why : why.substr(colon + 2)), place, kFix);
  }
  truncated_ = !ended_;
  return false;
}

}  // namespace tensorlane::timeline
