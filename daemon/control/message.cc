#include "daemon/control/message.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "common/base/text.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNesting = 6;
constexpr std::size_t kMaxStatusText = 4096;

// The number in the head of a CBOR item, whose low five bits say where it is; takes it off `bytes`. Nothing for lengths
// that only come out at the end of an item.
std::optional<std::uint64_t> take_argument(unsigned low_bits, std::span<const std::byte>& bytes) {
  if (low_bits < 24) return low_bits;
  const std::size_t size = std::size_t{1} << (low_bits - 24);
  if (low_bits > 27 || bytes.size() < size) return std::nullopt;
  std::uint64_t argument = 0;
  for (const std::byte byte : bytes.first(size)) argument = argument << 8 | std::to_integer<std::uint64_t>(byte);
  bytes = bytes.subspan(size);
  return argument;
}

// Whether the bytes are one CBOR item without tags and lengths in hindsight, complete, with arrays and maps nested at
// most kMaxNesting deep. The library's reader recurses for each array and map, and for each chunk of a string in
// chunks; this loop looks first, because it is the peer who says how deep that goes.
bool is_shallow(std::span<const std::byte> bytes) {
  enum Kind : unsigned { kBytes = 2, kText = 3, kArray = 4, kMap = 5, kTag = 6 };
  std::array<std::uint64_t, kMaxNesting> left{};  // items, of the arrays and maps that are open
  std::size_t depth = 0;
  do {
    if (bytes.empty()) return false;
    const auto head = std::to_integer<unsigned>(bytes.front());
    bytes = bytes.subspan(1);
    const unsigned kind = head >> 5;
    const std::optional<std::uint64_t> argument = take_argument(head & 31, bytes);
    if (!argument || kind == kTag) return false;
    if (kind >= kBytes && kind <= kMap && *argument > bytes.size()) return false;  // an item is a byte at least
    if (kind == kBytes || kind == kText) bytes = bytes.subspan(*argument);
    if ((kind == kArray || kind == kMap) && *argument > 0) {
      if (depth == kMaxNesting) return false;
      left[depth++] = kind == kMap ? *argument * 2 : *argument;
      continue;
    }
    while (depth > 0 && --left[depth - 1] == 0) --depth;
  } while (depth > 0);
  return bytes.empty();
}

Status corrupt(std::string what) {
  return Status(Code::kCorrupt, std::move(what), "control message", "look at the daemon of the host that sent it");
}

}  // namespace

std::vector<std::uint8_t> encode(const Message& message) {
  return json::to_cbor(json::array({kWireVersion, static_cast<std::uint8_t>(message.type), message.job.value,
                                    message.epoch.value, message.number, message.body}));
}

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxWireMessage)
    return corrupt(fmt::format("{} bytes are more than {}", bytes.size(), kMaxWireMessage));
  if (!is_shallow(bytes)) return corrupt("not CBOR, or nested too deeply");
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const json tree = json::from_cbor(first, first + bytes.size(), true, false);
  if (!tree.is_array() || tree.empty()) return corrupt("not a message");
  ItemReader in(tree);
  const std::uint32_t version = in.u32();
  if (in.ok() && version != kWireVersion) {
    return Status(Code::kVersionMismatch, fmt::format("control protocol version {} is not {}", version, kWireVersion),
                  "control message", "run the same version of tensorlaned on all hosts");
  }
  Message message;
  const auto type = in.number(static_cast<std::uint64_t>(kLastMessageType));
  message.type = static_cast<MessageType>(type);
  message.job = JobId(in.number(~std::uint64_t{0}));
  message.epoch = Epoch(in.u32());
  message.number = in.number(~std::uint64_t{0});
  message.body = in.array();
  if (!in.done() || type == 0) return corrupt("not a message");
  return message;
}

std::optional<Envelope> read_envelope(std::span<const std::byte> bytes) {
  constexpr unsigned kNumber = 0, kArray = 4;
  const auto take = [&bytes](unsigned kind) -> std::optional<std::uint64_t> {
    if (bytes.empty() || std::to_integer<unsigned>(bytes.front()) >> 5 != kind) return std::nullopt;
    const unsigned low_bits = std::to_integer<unsigned>(bytes.front()) & 31;
    bytes = bytes.subspan(1);
    return take_argument(low_bits, bytes);
  };
  if (!take(kArray)) return std::nullopt;
  const auto version = take(kNumber), type = take(kNumber), job = take(kNumber);
  if (!version || !type || !job) return std::nullopt;
  return Envelope{*version, *type, JobId(*job)};
}

ItemReader::ItemReader(const json& array) : array_(&array), ok_(array.is_array()) {}

const json* ItemReader::take() {
  if (!ok_ || next_ >= array_->size()) {
    ok_ = false;
    return nullptr;
  }
  return &(*array_)[next_++];
}

std::uint64_t ItemReader::number(std::uint64_t most) {
  const json* item = take();
  const bool is_one =
      item != nullptr && item->is_number_integer() && (item->is_number_unsigned() || item->get<std::int64_t>() >= 0);
  if (!is_one || item->get<std::uint64_t>() > most) {
    ok_ = false;
    return 0;
  }
  return item->get<std::uint64_t>();
}

double ItemReader::real() {
  const json* item = take();
  if (item == nullptr || !item->is_number() || !std::isfinite(item->get<double>())) {
    ok_ = false;
    return 0;
  }
  return item->get<double>();
}

float ItemReader::fraction() {
  const double value = real();
  if (value >= 0 && value <= 1) return static_cast<float>(value);
  ok_ = false;
  return 0;
}

bool ItemReader::boolean() {
  const json* item = take();
  if (item == nullptr || !item->is_boolean()) {
    ok_ = false;
    return false;
  }
  return item->get<bool>();
}

std::string ItemReader::raw_text(std::size_t most) {
  const json* item = take();
  if (item == nullptr || !item->is_string() || item->get_ref<const std::string&>().size() > most) {
    ok_ = false;
    return {};
  }
  return item->get_ref<const std::string&>();
}

std::string ItemReader::shown_text(std::size_t most) {
  return printable(raw_text(most));
}

std::string ItemReader::text(std::size_t most) {
  const std::size_t at = next_;
  std::string shown = shown_text(most);
  if (ok_ && shown == (*array_)[at].get_ref<const std::string&>()) return shown;
  ok_ = false;
  return {};
}

std::span<const std::uint8_t> ItemReader::bytes(std::size_t size) {
  const auto found = bytes_up_to(size);
  ok_ = ok_ && found.size() == size;
  return ok_ ? found : std::span<const std::uint8_t>();
}

std::span<const std::uint8_t> ItemReader::bytes_up_to(std::size_t most) {
  const json* item = take();
  if (item == nullptr || !item->is_binary() || item->get_binary().size() > most) {
    ok_ = false;
    return {};
  }
  return item->get_binary();
}

const json& ItemReader::array() {
  static const json empty = json::array();
  const json* item = take();
  if (item == nullptr || !item->is_array()) {
    ok_ = false;
    return empty;
  }
  return *item;
}

json status_to_json(const Status& status) {
  const auto cut = [](const std::string& text) { return text.substr(0, kMaxStatusText); };
  return json::array(
      {static_cast<std::uint32_t>(status.code()), cut(status.what()), cut(status.where()), cut(status.fix())});
}

Status status_from_json(const json& array) {
  ItemReader in(array);
  const auto code = static_cast<Code>(in.number(static_cast<std::uint64_t>(Code::kInternal)));
  std::string what = in.shown_text(kMaxStatusText), where = in.shown_text(kMaxStatusText),
              fix = in.shown_text(kMaxStatusText);
  if (!in.done()) return Status(Code::kInternal, "a peer sent an error that cannot be read");
  if (code == Code::kOk) return {};
  return Status(code, std::move(what), std::move(where), std::move(fix));
}

}  // namespace tensorlane::control
