#include "tests/simulation/datagram/path.h"

#include <algorithm>
#include <cstring>

#include "simulator/clock/random.h"

namespace tensorlane::datagram::test {

// ---- an end ----

std::vector<std::byte> End::contents(std::uint64_t number, std::size_t bytes) const {
  std::vector<std::byte> contents(bytes);
  std::uint64_t word = simulator::mix(seed_ * 977 + number * 131 + slot_);
  for (std::size_t i = 0; i < bytes; i += sizeof word) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(contents.data() + i, &word, std::min(sizeof word, bytes - i));
  }
  return contents;
}

ports::Outgoing End::next(std::size_t bytes) {
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

void End::on_sent(std::uint64_t token) {
  if (token != sent_ + 1) wrong_ = "frames are said to be sent in another order";
  kept_.erase(token - 1);  // reading it from now on is a fault
  ++sent_;
}

Result<std::span<std::byte>> End::on_header(const protocol::FrameHeader& header) {
  if (header.offset != headers_) wrong_ = "a header came in another order";
  const std::uint64_t number = headers_++;
  if (header.payload_bytes == 0) return std::span<std::byte>();
  if (dropped(number)) return std::span<std::byte>();
  std::vector<std::byte>& place = landing_[number];
  place.resize(header.payload_bytes);
  return std::span(place);
}

void End::on_frame(const protocol::FrameHeader& header) {
  while (dropped(delivered_)) ++delivered_;  // of these nothing is said
  if (header.offset != delivered_) wrong_ = "a frame came in another order, or twice";
  if (landing_[header.offset] != contents(header.offset, header.payload_bytes)) wrong_ = "a payload is another one";
  landing_.erase(header.offset);
  ++delivered_;
}

// ---- the path ----

// What a host attaches. Frames that come go to one End, and those that were sent are told to another.
struct Path::Both final : ports::FrameSink {
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return comes->on_header(header);
  }
  void on_frame(const protocol::FrameHeader& header) override { comes->on_frame(header); }
  void on_sent(std::uint64_t token) override { sends->on_sent(token); }
  End *comes = nullptr, *sends = nullptr;
};

Path::Host::Host(Path& p, int i) : path(p), index(i), credits(p.options_.credits) {}
Path::Host::~Host() = default;

void Path::Host::on_open(Slot slot) {
  ++opened[slot];
  path.renew(index, slot);
}

void Path::Host::on_closed(Slot slot, const Status& cause) {
  ++closed[slot];
  if (cause.ok()) wrong = "a class was closed without a cause";
  path.renew(index, slot);
}

// What a stream of a generation of a class carries.
std::uint64_t Path::contents_of(int sender, int host, Slot slot) const {
  const std::uint64_t generation = hosts_[host]->association->generation(slot);
  return options_.seed * 4096 + incarnation_ * 256 + generation * 2 + static_cast<unsigned>(sender);
}

// The ends of a stream that is gone give way to others.
void Path::renew(int i, Slot slot) {
  Host& host = *hosts_[i];
  std::uint64_t drops = 0;
  for (auto* ends : {&host.sends, &host.receives}) {
    std::unique_ptr<End>& end = (*ends)[slot];
    if (end) {
      drops = end->drops;
      if (!end->wrong().empty()) host.wrong = end->wrong();
      host.old[slot].push_back(std::move(end));
    }
    end = std::make_unique<End>(contents_of(ends == &host.sends ? i : 1 - i, i, slot), slot);
  }
  host.receives[slot]->drops = drops;
  if (!host.association->borrows(slot)) host.old[slot].clear();
  host.sinks[slot]->comes = host.receives[slot].get();
  host.sinks[slot]->sends = host.sends[slot].get();
}

void Path::attach(int i, Slot slot) {
  hosts_[i]->association->attach(now_, slot, *hosts_[i]->sinks[slot]);
}

void Path::close(int i, Slot slot) {
  hosts_[i]->association->close(now_, slot);
  renew(i, slot);
}

bool Path::open() const {
  for (Slot slot = 0; slot <= options_.classes; ++slot) {
    const Association &one = *hosts_[0]->association, &other = *hosts_[1]->association;
    if (!one.is_up(slot) || !other.is_up(slot) || one.generation(slot) != other.generation(slot)) return false;
  }
  return true;
}

Path::Path(const PathOptions& options) : loss(options.loss), options_(options), random_(options.seed) {
  for (int i : {0, 1}) hosts_[i] = std::make_unique<Host>(*this, i);
  restart();
}

void Path::restart() {
  ++incarnation_;
  protect::Key keys[2] = {};
  for (int i : {0, 1}) keys[i][0] = std::byte{static_cast<unsigned char>(2 * incarnation_ + static_cast<unsigned>(i))};
  numbers_.clear();
  for (auto& borrowing : borrowing_) borrowing.clear();
  for (int i : {0, 1}) {
    Host& host = *hosts_[i];
    AssociationConfig config = options_.config;
    config.job = JobId(7);
    config.local = static_cast<std::uint32_t>(10 + i);
    config.remote = static_cast<std::uint32_t>(11 - i);
    config.classes = options_.classes;
    config.unasked = options_.credits.unasked;
    config.level = options_.level;
    if (config.level != DataProtection::kNone) config.cipher = protect::best_of(protect::ciphers_here());
    config.send_secret = keys[i];
    config.receive_secret = keys[1 - i];
    host.association = std::make_unique<Association>(config, host.credits, host);
    host.sends.clear();
    host.receives.clear();
    host.old.clear();
    host.sends.resize(kSlots);
    host.receives.resize(kSlots);
    host.old.resize(kSlots);
    host.sinks.clear();
    for (Slot slot = 0; slot <= options_.classes; ++slot) {
      host.sinks.push_back(std::make_unique<Both>());
      renew(i, slot);
      if (options_.attach) attach(i, slot);
    }
  }
}

Path::~Path() = default;

bool Path::send(int from, Slot slot, std::size_t bytes) {
  Host& host = *hosts_[from];
  if (!host.association->writable(slot)) return false;
  host.association->send(slot, host.sends[slot]->next(bytes));
  return true;
}

void Path::put(int from, std::span<const std::byte> packet) {
  ++packets;
  const Head head = *read_head(packet);
  if (!numbers_.insert({from, head.slot, head.number}).second) reused_ = true;
  const auto wire = Duration(static_cast<std::int64_t>(packet.size() + 46) * 8'000'000'000 /
                             static_cast<std::int64_t>(options_.rate.value));
  free_at_[from] = std::max(free_at_[from], now_) + wire;
  const auto fly = [&](std::vector<std::byte> bytes) {
    const auto late = static_cast<std::int64_t>(draw() * static_cast<double>(options_.jitter.value));
    flying_.emplace(free_at_[from] + options_.delay + Duration(late),
                    Flight{std::move(bytes), 1 - from, draw() < options_.marks});
  };
  if (draw() < options_.forged) {
    std::vector<std::byte> forged(packet.begin(), packet.end());
    // Somebody who has seen none guesses; who has seen some changes them.
    const std::size_t from_byte = draw() < 0.5 ? 4 : sizeof(Head) + 8;
    for (std::size_t i = from_byte; i < std::min<std::size_t>(forged.size(), 48); ++i)
      forged[i] = static_cast<std::byte>(random_());
    fly(std::move(forged));
  }
  if (draw() < loss) return;
  std::vector<std::byte> bytes(packet.begin(), packet.end());
  if (draw() < options_.damage) {
    // Where UDP's checksum would not be asked: what is not a piece's bytes.
    const std::size_t clear =
        options_.level == DataProtection::kNone ? std::min<std::size_t>(bytes.size(), 32) : bytes.size();
    bytes[random_() % clear] ^= static_cast<std::byte>(1 + random_() % 255);
  }
  if (draw() < options_.twice) fly(bytes);
  fly(std::move(bytes));
}

// A packet whose parts are read only when the link has room for the next one.
std::size_t Path::gather(int from, Slot slot, std::span<std::byte> packet) {
  std::array<std::byte, 9000> own;
  Gathered parts;
  if (!hosts_[from]->association->make(now_, slot, own, &parts)) return 0;
  if (parts.borrows) borrowing_[from].emplace_back(slot, parts.number);
  std::size_t bytes = 0;
  for (const auto part : std::span(parts.parts).first(parts.count)) {
    std::memcpy(packet.data() + bytes, part.data(), part.size());
    bytes += part.size();
  }
  return bytes == parts.bytes ? bytes : 0;
}

// The most urgent packet first, as long as the link has room.
void Path::pump(int from) {
  Host& host = *hosts_[from];
  if (!host.failed.ok()) return;
  host.credits.give(now_);
  std::array<std::byte, 9000> packet;
  while (free_at_[from] <= now_) {
    for (; !borrowing_[from].empty(); borrowing_[from].pop_front()) {
      const auto [slot, number] = borrowing_[from].front();
      host.association->released(slot, number);
      if (!host.association->borrows(slot)) host.old[slot].clear();
    }
    std::size_t bytes = host.association->make(now_, kAckSlot, packet);
    for (Slot slot = 0; bytes == 0 && slot <= options_.classes; ++slot)
      bytes = options_.gathers ? gather(from, slot, packet) : host.association->make(now_, slot, packet);
    if (bytes == 0) return;
    put(from, std::span(packet).first(bytes));
  }
}

void Path::arrive(const Flight& flight) {
  Host& host = *hosts_[flight.to];
  if (!host.failed.ok()) return;
  std::vector<std::byte> bytes = flight.bytes;
  host.failed = host.association->take(now_, bytes, flight.marked);
}

bool Path::run(Duration time, const std::function<bool()>& done) {
  const Time end = now_ + time;
  while (!done()) {
    for (int i : {0, 1}) pump(i);
    if (done()) return true;
    Time next = end;
    if (!flying_.empty()) next = std::min(next, flying_.begin()->first);
    for (int i : {0, 1}) {
      // What is due already waits for the link.
      if (const auto due = hosts_[i]->association->deadline(); due && *due > now_) next = std::min(next, *due);
      if (free_at_[i] > now_) next = std::min(next, free_at_[i]);
    }
    if (!open()) next = std::min(next, now_ + milliseconds(1));  // `done` may attach
    if (next >= end) return false;
    now_ = std::max(next, now_ + nanoseconds(1));
    while (!flying_.empty() && flying_.begin()->first <= now_) {
      const Flight flight = std::move(flying_.begin()->second);
      flying_.erase(flying_.begin());
      arrive(flight);
    }
    for (int i : {0, 1})
      if (const auto due = hosts_[i]->association->deadline(); due && *due <= now_)
        if (Status status = hosts_[i]->association->on_time(now_); !status.ok()) hosts_[i]->failed = status;
  }
  return true;
}

bool Path::settled() const {
  for (const auto& host : hosts_)
    for (const auto& end : host->sends)
      if (end && end->sent() != end->given()) return false;
  return true;
}

std::string Path::wrong() const {
  if (reused_) return "a packet number is used twice";
  for (const auto& host : hosts_) {
    if (!host->failed.ok()) return host->failed.to_string();
    if (!host->wrong.empty()) return host->wrong;
    for (const auto* ends : {&host->sends, &host->receives})
      for (const auto& end : *ends)
        if (end && !end->wrong().empty()) return end->wrong();
  }
  return {};
}

}  // namespace tensorlane::datagram::test
