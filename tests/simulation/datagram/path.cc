#include "tests/simulation/datagram/path.h"

#include <algorithm>
#include <cstring>

#include "simulator/clock/random.h"

namespace tensorlane::datagram::test {

// ---- frames ----

std::vector<std::byte> Frames::contents(std::uint64_t number, std::size_t bytes) const {
  std::vector<std::byte> contents(bytes);
  std::uint64_t word = simulator::mix(seed_ * 977 + number * 131 + slot_);
  for (std::size_t i = 0; i < bytes; i += sizeof word) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(contents.data() + i, &word, std::min(sizeof word, bytes - i));
  }
  return contents;
}

ports::Outgoing Frames::next(std::size_t bytes) {
  const std::uint64_t number = given_++;
  ports::Outgoing operation;
  operation.header.type = slot_ == 0 ? protocol::FrameType::kGrant : protocol::FrameType::kData;
  operation.header.cls = class_of(slot_);
  operation.header.offset = number;
  operation.header.payload_bytes = static_cast<std::uint32_t>(bytes);
  operation.header.grant = 1;
  operation.payload = kept_[number] = contents(number, bytes);
  operation.token = number + 1;
  return operation;
}

bool Frames::keeps(std::span<const std::byte> part) const {
  return std::ranges::any_of(kept_, [&](const auto& entry) {
    const std::vector<std::byte>& payload = entry.second;
    return payload.data() <= part.data() && part.data() + part.size() <= payload.data() + payload.size();
  });
}

void Frames::on_sent(std::uint64_t token) {
  if (token != sent_ + 1) wrong_ = "frames are said to be sent in another order";
  kept_.erase(token - 1);  // reading it from now on is a fault
  ++sent_;
}

Result<std::span<std::byte>> Frames::on_header(const protocol::FrameHeader& header) {
  if (header.offset != headers_) wrong_ = "a header came in another order";
  const std::uint64_t number = headers_++;
  if (header.payload_bytes == 0) return std::span<std::byte>();
  if (dropped(number)) return std::span<std::byte>();
  std::vector<std::byte>& place = landing_[number];
  place.resize(header.payload_bytes);
  return std::span(place);
}

void Frames::on_frame(const protocol::FrameHeader& header) {
  while (dropped(delivered_)) ++delivered_;  // of these nothing is said
  if (header.offset != delivered_) wrong_ = "a frame came in another order, or twice";
  if (landing_[header.offset] != contents(header.offset, header.payload_bytes)) wrong_ = "a payload is another one";
  landing_.erase(header.offset);
  ++delivered_;
}

// ---- a flow ----

Path::Flow::Flow(const Pair& pair, unsigned at_host, int which_end, std::uint64_t seed)
    : host(at_host),
      peer(pair.peer),
      end(which_end),
      slot(pair.slot),
      sends(seed + static_cast<unsigned>(end), slot),
      receives(seed + static_cast<unsigned>(1 - end), slot) {}

bool Path::Flow::send(std::size_t bytes) {
  if (!association->writable()) return false;
  association->send(sends.next(bytes));
  return true;
}

void Path::Flow::credit_raised() {
  if (association == nullptr) wrong = "credit is given to a flow that has gone";
}

// ---- the path ----

// A packet that the link of a host sends.
struct Path::Sending {
  Flow* from = nullptr;
  std::array<std::byte, 9000> own;
  Gathered parts;  // of `own`, and of payloads that are kept
};

struct Path::Host {
  Host(unsigned number, const Credits::Options& options) : index(number), credits(options) {}

  const unsigned index;
  Credits credits;
  std::vector<Flow*> flows;               // that are there, the one that was served last at the end
  std::map<std::uint32_t, Flow*> number;  // of packets that come
  Time free_at;                           // when the link has room for the next packet
  bool sending = false;                   // a packet that borrows: it is read when the link has sent it
  Sending packet;
};

Path::Path(const PathOptions& options) : loss(options.loss), options_(options), random_(options.seed) {
  for (unsigned host = 0; host <= options.peers; ++host) hosts_.emplace_back(host, options.credits);
  for (unsigned peer = 1; peer <= options.peers; ++peer)
    for (Slot slot = 0; slot <= options.classes; ++slot) pairs_.push_back({.peer = peer, .slot = slot});
  for (Pair& pair : pairs_) {
    renew(pair);
    for (const int end : {0, 1}) make(pair, end);
  }
}

Path::~Path() {
  for (const auto& flow : flows_) flow->association.reset();  // before the credits of hosts
}

void Path::renew(Pair& pair) {
  pair.incarnation = ++incarnations_;
  if (pair.numbers[0] != 0 && draw() < 0.5) return;
  for (std::uint32_t& number : pair.numbers) number = ++numbers_;
}

void Path::make(Pair& pair, int end) {
  Host& host = hosts_[end == 0 ? 0 : pair.peer];
  flows_.push_back(
      std::make_unique<Flow>(pair, host.index, end, options_.seed * 4096 + pair.incarnation * std::uint64_t{2}));
  Flow& flow = *flows_.back();
  pair.ends[end] = &flow;
  if (options_.drops && pair.slot > 0 && random_() % 3 == 0) flow.receives.drops = 3 + random_() % 5;
  AssociationConfig config = options_.config;
  config.job = JobId(1 + pair.peer % 2);
  config.slot = pair.slot;
  config.remote = pair.numbers[1 - end];
  config.unasked = options_.credits.unasked;
  config.level = options_.level;
  if (config.level != DataProtection::kNone) config.cipher = protect::best_of(protect::ciphers_here());
  for (const int direction : {0, 1}) {
    const std::uint32_t secret = 2 * pair.incarnation + static_cast<unsigned>(direction);
    std::memcpy((direction == end ? config.send_secret : config.receive_secret).data(), &secret, sizeof secret);
  }
  flow.association = std::make_unique<Association>(config, host.credits, flow, flow);
  host.flows.push_back(&flow);
  host.number[pair.numbers[end]] = &flow;
}

void Path::remove(Pair& pair, int end) {
  Flow& flow = *std::exchange(pair.ends[end], nullptr);
  Host& host = hosts_[flow.host];
  std::erase(host.flows, &flow);
  std::erase_if(host.number, [&](const auto& entry) { return entry.second == &flow; });
  flow.association.reset();
}

void Path::restart(Flow& flow, Duration after) {
  Pair& both = pair(flow.slot, flow.peer);
  const int first = flow.end;
  remove(both, first);
  const Time last = now_ + options_.delay;
  later_.emplace(last, [this, &both, first] { remove(both, 1 - first), renew(both); });
  later_.emplace(last + after, [this, &both, first] { make(both, first); });
  later_.emplace(last + after + options_.delay, [this, &both, first] { make(both, 1 - first); });
}

void Path::put(const Flow& from, std::vector<std::byte> packet) {
  ++packets;
  if (draw() < options_.forged) {
    std::vector<std::byte> forged = packet;
    // Somebody who has seen none guesses; who has seen some changes them.
    const std::size_t from_byte = draw() < 0.5 ? 4 : sizeof(Head) + 8;
    for (std::size_t i = from_byte; i < std::min<std::size_t>(forged.size(), 48); ++i)
      forged[i] = static_cast<std::byte>(random_());
    fly(from, std::move(forged));
  }
  if (draw() < loss) return;
  if (draw() < options_.damage) {
    // Where UDP's checksum would not be asked: what is not a piece's bytes.
    const std::size_t clear =
        options_.level == DataProtection::kNone ? std::min<std::size_t>(packet.size(), 32) : packet.size();
    packet[random_() % clear] ^= static_cast<std::byte>(1 + random_() % 255);
  }
  if (draw() < options_.twice) fly(from, packet);
  fly(from, std::move(packet));
}

void Path::fly(const Flow& from, std::vector<std::byte> packet) {
  const Duration jitter(static_cast<std::int64_t>(draw() * static_cast<double>(options_.jitter.value)));
  Flight flight{std::move(packet), from.end == 0 ? from.peer : 0, draw() < options_.marks};
  later_.emplace(hosts_[from.host].free_at + options_.delay + jitter,
                 [this, flight = std::move(flight)]() mutable { arrive(flight); });
}

// What the link has sent.
void Path::leave(const Sending& packet) {
  Flow& from = *packet.from;
  std::vector<std::byte> bytes;
  for (const auto part : std::span(packet.parts.parts).first(packet.parts.count)) {
    const bool own = part.data() >= packet.own.data() && part.data() < packet.own.data() + packet.own.size();
    if (!own && !from.sends.keeps(part)) {
      from.wrong = "a packet borrows of a payload that is not kept";
      return;
    }
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  if (bytes.size() != packet.parts.bytes) from.wrong = "a packet is not as long as its parts";
  if (packet.parts.borrows && from.association != nullptr) from.association->released(packet.parts.number);
  put(from, std::move(bytes));
}

// The most urgent packet, and of one class those of its flows in turn.
bool Path::next_packet(Host& host, Sending* packet) {
  const auto use = [&](Flow& flow, std::size_t bytes) {
    packet->from = &flow;
    packet->parts = {.count = 1, .bytes = bytes};
    packet->parts.parts[0] = std::span(packet->own).first(bytes);
    return bytes > 0;
  };
  for (Flow* flow : host.flows)
    if (flow->failed.ok() && use(*flow, flow->association->make_ack(now_, packet->own))) return true;
  for (Slot slot = 0; slot <= options_.classes; ++slot) {
    for (auto at = host.flows.begin(); at != host.flows.end(); ++at) {
      Flow& flow = **at;
      if (flow.slot != slot || !flow.failed.ok()) continue;
      packet->from = &flow;
      if (options_.gathers ? !flow.association->make(now_, packet->own, &packet->parts)
                           : !use(flow, flow.association->make(now_, packet->own)))
        continue;
      std::rotate(at, at + 1, host.flows.end());
      return true;
    }
  }
  return false;
}

// As much as the link has room for.
void Path::pump(Host& host) {
  host.credits.give(now_);
  while (host.free_at <= now_) {
    Sending& packet = host.packet;
    if (std::exchange(host.sending, false)) leave(packet);
    if (!next_packet(host, &packet)) return;
    const Head head = *read_head(packet.own);
    Flow& from = *packet.from;
    if (!from.heads.insert({head.slot, head.number}).second) from.wrong = "a packet number is used twice";
    host.free_at =
        std::max(host.free_at, now_) + Duration(static_cast<std::int64_t>(packet.parts.bytes + 46) * 8'000'000'000 /
                                                static_cast<std::int64_t>(options_.rate.value));
    host.sending = packet.parts.borrows;
    if (!host.sending) leave(packet);
  }
}

void Path::arrive(Flight& flight) {
  Host& host = hosts_[flight.to];
  std::uint32_t number = 0;
  std::memcpy(&number, flight.bytes.data(), sizeof number);
  const auto flow = host.number.find(number);
  if (flow == host.number.end() || !flow->second->failed.ok()) return;
  flow->second->failed = flow->second->association->take(now_, flight.bytes, flight.marked);
}

// When something happens next, but for what is due already and waits for a link.
Time Path::next_event(Time end) {
  Time next = end;
  const auto at = [&](const std::optional<Time>& time) {
    if (time && *time > now_) next = std::min(next, *time);
  };
  if (!later_.empty()) next = std::min(next, later_.begin()->first);
  for (Host& host : hosts_) {
    at(host.free_at);
    at(host.credits.deadline());
    for (const Flow* flow : host.flows) at(flow->association->deadline());
  }
  return next;
}

bool Path::run(Duration time, const std::function<bool()>& done) {
  const Time end = now_ + time;
  while (!done()) {
    for (Host& host : hosts_) pump(host);
    if (done()) return true;
    now_ = std::max(next_event(end), now_ + nanoseconds(1));
    if (now_ >= end) return false;
    while (!later_.empty() && later_.begin()->first <= now_) {
      auto what = std::move(later_.begin()->second);
      later_.erase(later_.begin());
      what();
    }
    for (Host& host : hosts_)
      for (Flow* flow : host.flows)
        if (const auto due = flow->association->deadline(); due && *due <= now_ && flow->failed.ok())
          flow->failed = flow->association->on_time(now_);
  }
  return true;
}

std::vector<Path::Flow*> Path::flows() {
  std::vector<Flow*> there;
  for (const Pair& pair : pairs_)
    for (Flow* flow : pair.ends)
      if (flow != nullptr) there.push_back(flow);
  return there;
}

bool Path::complete() {
  return flows().size() == pairs_.size() * 2;
}

bool Path::settled() {
  return std::ranges::all_of(flows(), [](const Flow* flow) { return flow->sends.sent() == flow->sends.given(); });
}

std::string Path::wrong() const {
  for (const auto& flow : flows_) {
    if (!flow->failed.ok()) return flow->failed.to_string();
    if (!flow->wrong.empty()) return flow->wrong;
    for (const Frames* frames : {&flow->sends, &flow->receives})
      if (!frames->wrong().empty()) return frames->wrong();
  }
  return {};
}

}  // namespace tensorlane::datagram::test
