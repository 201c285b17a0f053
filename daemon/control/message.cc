#include "daemon/control/message.h"

#include <fmt/format.h>

#include <cmath>

namespace tensorlane::control {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNesting = 6;
constexpr std::size_t kMaxStatusText = 4096;

// Accepts CBOR whose arrays and maps are nested at most kMaxNesting deep. The library's reader recurses once per level,
// so the check comes before the tree is built, and stops the recursion itself.
class NestingCheck : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kMaxNesting; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override { return ++depth_ <= kMaxNesting; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::size_t depth_ = 0;
};

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
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto* last = first + bytes.size();
  json tree;
  try {  // a length that no container can have is thrown by the library even when it is asked not to
    NestingCheck check;
    if (!json::sax_parse(first, last, &check, json::input_format_t::cbor))
      return corrupt("not CBOR, or nested too deeply");
    tree = json::from_cbor(first, last, true, false);
  } catch (const json::exception&) {
    return corrupt("not CBOR");
  }
  if (!tree.is_array() || tree.empty()) return corrupt("not a message");
  ItemReader in(tree);
  const std::uint32_t version = in.u32();
  if (in.ok() && version != kWireVersion) {
    return Status(Code::kVersionMismatch, fmt::format("control protocol version {} is not {}", version, kWireVersion),
                  "control message", "run the same version of tensorlaned on all hosts");
  }
  Message message;
  const auto type = in.number(static_cast<std::uint64_t>(MessageType::kAbort));
  message.type = static_cast<MessageType>(type);
  message.job = JobId(in.number(~std::uint64_t{0}));
  message.epoch = Epoch(in.u32());
  message.number = in.number(~std::uint64_t{0});
  message.body = in.array();
  if (!in.done() || type == 0) return corrupt("not a message");
  return message;
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

bool ItemReader::boolean() {
  const json* item = take();
  if (item == nullptr || !item->is_boolean()) {
    ok_ = false;
    return false;
  }
  return item->get<bool>();
}

std::string ItemReader::text(std::size_t most) {
  const json* item = take();
  if (item == nullptr || !item->is_string() || item->get_ref<const std::string&>().size() > most) {
    ok_ = false;
    return {};
  }
  return item->get<std::string>();
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
  std::string what = in.text(kMaxStatusText), where = in.text(kMaxStatusText), fix = in.text(kMaxStatusText);
  if (!in.done()) return Status(Code::kInternal, "a peer sent an error that cannot be read");
  if (code == Code::kOk) return {};
  return Status(code, std::move(what), std::move(where), std::move(fix));
}

}  // namespace tensorlane::control
