#include "common/probe/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "common/json/json.h"
#include "common/probe/host.h"
#include "common/probe/load.h"
#include "common/probe/prober.h"

namespace tensorlane::probe {
namespace {

using nlohmann::json;

// What a command asks for is out of bounds or lacks something. Caught in handle().
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename Number>
Number number_at(const json& object, const char* key, long long low, long long high, long long otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return static_cast<Number>(otherwise);
  if (!found->is_number_integer()) throw BadRequest(std::string(key) + " is no whole number");
  const auto value = found->get<long long>();
  if (value < low || value > high)
    throw BadRequest(std::string(key) + " is not from " + std::to_string(low) + " to " + std::to_string(high));
  return static_cast<Number>(value);
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string() || found->get_ref<const std::string&>().size() > 256)
    throw BadRequest(std::string(key) + " is no text");
  return found->get<std::string>();
}

const json& list_at(const json& object, const char* key, std::size_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) throw BadRequest(std::string(key) + " is no list");
  if (found->size() > most) throw BadRequest(std::string(key) + " has more than " + std::to_string(most) + " items");
  for (const json& item : *found)
    if (!item.is_object()) throw BadRequest(std::string(key) + " has an item that is no object");
  return *found;
}

Tag tag_at(const json& object) {
  return {number_at<std::uint8_t>(object, "dscp", 0, 63, 0), number_at<std::uint8_t>(object, "pcp", 0, 7, 0)};
}

Token token_at(const json& object) {
  Token token{};
  if (!parse_token(text_at(object, "token"), &token)) throw BadRequest("token is not 32 hexadecimal digits");
  return token;
}

FlowSpec flow_at(const json& object) {
  FlowSpec flow;
  flow.id = number_at<std::uint32_t>(object, "id", 0, 0xffffffffLL, 0);
  flow.address = text_at(object, "address");
  flow.source = text_at(object, "source");
  flow.port = number_at<std::uint16_t>(object, "port", 1, 65535, 0);
  if (flow.port == 0) throw BadRequest("port is missing");
  flow.source_port = number_at<std::uint16_t>(object, "source_port", 0, 65535, 0);
  flow.hops = number_at<std::uint8_t>(object, "hops", 0, 32, 0);
  flow.tag = tag_at(object);
  return flow;
}

std::vector<FlowSpec> flows_at(const json& command) {
  std::vector<FlowSpec> flows;
  for (const json& item : list_at(command, "flows", kMaxFlows)) {
    FlowSpec flow = flow_at(item);
    const auto count = number_at<std::size_t>(item, "count", 1, kMaxFlows, 1);
    if (flows.size() + count > kMaxFlows)
      throw BadRequest("there are more than " + std::to_string(kMaxFlows) + " flows");
    for (std::size_t i = 0; i < count; ++i, ++flow.id) flows.push_back(flow);
  }
  return flows;
}

std::vector<std::uint16_t> ports_at(const json& list) {
  if (!list.is_array() || list.empty() || list.size() > kMaxStreams) throw BadRequest("source_ports is no list");
  std::vector<std::uint16_t> ports;
  for (const json& port : list) {
    if (!port.is_number_unsigned() || port.get<std::uint64_t>() > 65535)
      throw BadRequest("source_ports has an item that is no port");
    ports.push_back(port.get<std::uint16_t>());
  }
  return ports;
}

json known(std::uint8_t value) {
  return value == kUnknown ? json(nullptr) : json(value);
}

json to_json(const Arrival& arrival) {
  json line{{"kind", "arrival"},
            {"id", arrival.id},
            {"outcome", outcome_name(arrival.outcome)},
            {"source_port", arrival.source_port},
            {"own_dscp", arrival.own.dscp},
            {"own_priority", arrival.own.priority},
            {"left_dscp", known(arrival.left.dscp)},
            {"left_pcp", known(arrival.left.pcp)}};
  if (arrival.error != 0) line["error"] = std::strerror(arrival.error);
  if (arrival.outcome == Outcome::kArrived) {
    line["dscp"] = known(arrival.answer.dscp);
    line["pcp"] = known(arrival.answer.pcp);
    line["hop_limit"] = known(arrival.answer.hop_limit);
  }
  return line;
}

json to_json(const BurstSeen& burst) {
  json streams = json::array();
  for (const BurstSeen::Stream& stream : burst.streams)
    streams.push_back({{"start_ms", stream.start_ms}, {"bytes", stream.bytes}});
  return {{"kind", "burst"},
          {"id", burst.id},
          {"outcome", outcome_name(burst.outcome)},
          {"slot_ms", kSlotMilliseconds},
          {"streams", std::move(streams)},
          {"retransmitted", burst.retransmitted},
          {"delays_us", burst.delays_us}};
}

}  // namespace

// The commands by name: each writes its answers and may throw a BadRequest before it has begun.
struct Session::Commands {
  static void write(Session& session, const json& line) {
    session.write_(line.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  static void describe(Session& session, const json& command) {
    ::alarm(number_at<unsigned>(command, "lifetime_s", 1, 3600, 300));
    json addresses = json::array(), forced = json::array();
    for (const OwnAddress& own : own_addresses())
      addresses.push_back({{"interface", own.interface}, {"address", own.address}, {"family", own.ipv6 ? 6 : 4}});
    for (const Override& override : overrides(session.root_))
      forced.push_back({{"where", override.where}, {"dscp", override.dscp}});
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    json line{{"kind", "host"},
              {"version", kVersion},
              {"name", name.data()},
              {"sees_hops", session.icmp_.is_open()},
              {"sees_frames", session.capture_.is_open()},
              {"addresses", std::move(addresses)},
              {"overrides", std::move(forced)},
              {"environment", marking_environment()}};
    if (session.raw_error_ != 0) line["raw_error"] = std::strerror(session.raw_error_);
    write(session, line);
  }

  static void listen(Session& session, const json& command) {
    const Token token = token_at(command);
    const json& sockets = list_at(command, "sockets", kMaxListeners);
    std::vector<ListenAt> places;
    for (const json& socket : sockets)
      places.push_back(
          {text_at(socket, "address"), number_at<std::uint16_t>(socket, "port", 1, 65535, 1), tag_at(socket)});
    session.answerer_ = nullptr;
    session.token_ = token;
    session.answerer_ =
        std::make_unique<Answerer>(token, session.capture_.is_open() ? &session.capture_ : nullptr, session.channel_);
    json failed = json::array();
    for (const ListenAt& place : places) {
      const int error = session.answerer_->listen_at(place);
      if (error != 0)
        failed.push_back({{"address", place.address}, {"port", place.port}, {"error", std::strerror(error)}});
    }
    session.answerer_->start();
    write(session, {{"kind", "listening"}, {"sockets", places.size() - failed.size()}, {"failed", std::move(failed)}});
  }

  static void probe(Session& session, const json& command) {
    ProbeOptions options{.token = token_at(command)};
    options.timeout_ms = number_at<int>(command, "timeout_ms", 1, 30000, options.timeout_ms);
    options.deadline_ms = number_at<int>(command, "deadline_ms", 1, 120000, options.deadline_ms);
    options.at_once = number_at<std::size_t>(command, "at_once", 1, 512, static_cast<long long>(options.at_once));
    tensorlane::probe::probe(flows_at(command), options, session.capture_.is_open() ? &session.capture_ : nullptr,
                             [&](const Arrival& arrival) { write(session, to_json(arrival)); });
  }

  static void sweep(Session& session, const json& command) {
    SweepOptions options;
    options.answer_ms = number_at<int>(command, "answer_ms", 1, 10000, options.answer_ms);
    options.hop_ms = number_at<int>(command, "hop_ms", 1, 30000, options.hop_ms);
    options.deadline_ms = number_at<int>(command, "deadline_ms", 1, 120000, options.deadline_ms);
    options.at_once = number_at<std::size_t>(command, "at_once", 1, 64, static_cast<long long>(options.at_once));
    tensorlane::probe::sweep(flows_at(command), options, session.icmp_, [&](const HopSeen& hop) {
      write(session, {{"kind", "hop"},
                      {"id", hop.id},
                      {"distance", hop.distance},
                      {"address", hop.address.empty() ? json(nullptr) : json(hop.address)},
                      {"dscp", known(hop.dscp)}});
    });
  }

  static void load(Session& session, const json& command) {
    const Token token = token_at(command);
    std::vector<BurstSpec> bursts;
    for (const json& item : list_at(command, "bursts", kMaxBursts)) {
      BurstSpec burst{.flow = flow_at(item)};
      burst.purpose = text_at(item, "purpose") == "echo" ? Purpose::kEcho : Purpose::kSink;
      if (item.contains("source_ports")) burst.source_ports = ports_at(item["source_ports"]);
      burst.start_ms = number_at<int>(item, "start_ms", 0, 10000, 0);
      burst.duration_ms = number_at<int>(item, "duration_ms", 1, kMaxBurstMilliseconds, burst.duration_ms);
      burst.max_bytes = number_at<std::uint64_t>(item, "max_bytes", 1, kMaxBurstBytes, kMaxBurstBytes);
      bursts.push_back(std::move(burst));
    }
    for (const BurstSeen& burst : tensorlane::probe::load(bursts, token)) write(session, to_json(burst));
  }
};

Session::Session(std::function<void(const std::string&)> write, std::string root)
    : write_(std::move(write)), root_(std::move(root)) {}

Session::~Session() = default;

void Session::open_raw() {
  raw_error_ = icmp_.open();
  if (const int error = capture_.open(); raw_error_ == 0) raw_error_ = error;
}

bool Session::handle(const std::string& line) {
  const std::map<std::string, void (*)(Session&, const json&)> commands{{"describe", Commands::describe},
                                                                        {"listen", Commands::listen},
                                                                        {"probe", Commands::probe},
                                                                        {"sweep", Commands::sweep},
                                                                        {"load", Commands::load}};
  const json command = json::parse(line, nullptr, false);
  const bool named = command.is_object() && command.contains("do") && command["do"].is_string();
  const auto found = named ? commands.find(command["do"].get<std::string>()) : commands.end();
  if (found == commands.end()) {
    Commands::write(*this, {{"kind", "error"}, {"what", "this is no command of tensorlane-probe"}});
    return false;
  }
  try {
    found->second(*this, command);
  } catch (const BadRequest& bad) {
    Commands::write(*this, {{"kind", "error"}, {"do", found->first}, {"what", bad.what()}});
    return true;
  }
  Commands::write(*this, {{"kind", "done"}, {"do", found->first}});
  return true;
}

bool parse_token(const std::string& text, Token* token) {
  constexpr const char* kDigits = "0123456789abcdef";
  if (text.size() != 2 * token->size()) return false;
  for (std::size_t i = 0; i < token->size(); ++i) {
    const char* high = std::strchr(kDigits, text[2 * i]);
    const char* low = std::strchr(kDigits, text[2 * i + 1]);
    if (high == nullptr || low == nullptr || *high == '\0' || *low == '\0') return false;
    (*token)[i] = static_cast<std::uint8_t>((high - kDigits) << 4 | (low - kDigits));
  }
  return true;
}

std::string token_text(const Token& token) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : token) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 0xf];
  }
  return text;
}

}  // namespace tensorlane::probe
