#include "simulator/workload/messages.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "simulator/clock/random.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {
namespace {

constexpr std::uint64_t kOfMessages = 0x6d65'7373'0000'0000;
constexpr double kJobsWithMessages = 0.4;
constexpr double kFloods = 0.15;                    // of them
constexpr std::uint64_t kMostBytes = mib(2).value;  // of a program
constexpr std::pair<std::uint32_t, std::uint64_t> kLabels[] = {{0, 0}, {0, 7}, {3, 7}, {0, ~std::uint64_t{0}}};
constexpr std::uint64_t kAnyTag = 100;  // and the round: of messages that are received from any source

// A send and its receive.
struct Pair {
  std::uint32_t source = 0, destination = 0;
  MessageRequest send, receive;
};

class Drawing {
 public:
  Drawing(Scenario& s, std::uint64_t seed) : s_(s), random_(seed) {}
  void draw();

 private:
  std::uint64_t count();
  void draw_pair();
  void draw_flood();
  void add(Pair pair);
  void put_in_order(std::uint32_t rank, std::uint32_t round);
  std::uint32_t any_rank() { return static_cast<std::uint32_t>(random_.below(s_.engine.world_size)); }
  Dtype dtype() { return static_cast<Dtype>(random_.below(kDtypeCount)); }
  float urgency() { return static_cast<float>(random_.below(5)) / 4; }

  Scenario& s_;
  Random random_;
  std::vector<Pair> pairs_;
  std::uint32_t rounds_ = 1;
  double from_any_ = 0;
  std::uint32_t hot_[2] = {};  // ranks between which many go
  std::uint64_t any_count_ = 0, bytes_ = 0;
  Dtype any_dtype_{};
};

std::uint64_t Drawing::count() {
  const std::uint64_t kind = random_.below(100);
  if (kind < 15) return 0;
  if (kind < 60) return random_.between(1, 64);
  if (kind < 90) return random_.between(64, 8192);
  return random_.between(30'000, 150'000);  // two operations of the transport and more
}

void Drawing::add(Pair pair) {
  pair.send.sends = true;
  pair.send.peer = Rank(pair.destination);
  pairs_.push_back(pair);
}

void Drawing::draw_pair() {
  const bool hot = random_.chance(0.4), back = random_.chance(0.5);
  Pair pair{hot ? hot_[back] : any_rank(), hot ? hot_[!back] : any_rank(), {}, {}};
  MessageRequest& m = pair.send;
  m.round = static_cast<std::uint32_t>(random_.below(rounds_));
  m.urgency = urgency();
  const bool any = random_.chance(from_any_);
  const auto [set, tag] = kLabels[random_.below(std::size(kLabels))];
  m.set = any ? 0 : set;
  m.tag = any ? kAnyTag + m.round : tag;
  m.count = any ? any_count_ : count();
  m.dtype = any ? any_dtype_ : dtype();
  if (bytes_ + m.bytes() > kMostBytes) return;
  bytes_ += m.bytes();
  pair.receive = m;
  pair.receive.peer = Rank(any && random_.chance(0.7) ? protocol::kAnyRank : pair.source);
  if (!any && random_.chance(0.04)) ++pair.receive.count;
  add(pair);
}

// More than two hosts have credit for, of which the receives come late: in a round of their own, so that nothing else
// waits for them.
void Drawing::draw_flood() {
  const auto& hosts = s_.plan.rank_hosts;
  std::vector<std::uint32_t> of_host;  // of two ranks of a host, as that is lent more than one rank can use
  for (std::uint32_t rank = 0; rank + 1 < hosts.size() && of_host.empty(); ++rank) {
    if (hosts[rank] == hosts[rank + 1]) of_host = {rank, rank + 1};
  }
  if (of_host.empty() || s_.hosts() == 1) return;
  std::uint32_t to = any_rank();
  while (hosts[to] == hosts[of_host.front()]) to = (to + 1) % s_.engine.world_size;
  const std::uint64_t messages = random_.between(1100, 1400);
  for (std::uint64_t i = 0; i < messages; ++i) {
    Pair pair{of_host[i % of_host.size()], to, {}, {}};
    pair.send.round = rounds_;
    pair.send.tag = random_.below(2);
    pair.send.count = random_.below(3);
    pair.receive = pair.send;
    pair.receive.peer = Rank(pair.source);
    add(pair);
  }
  s_.messages.at_once = 0.99;
  s_.messages.ranks[to].late = random_.between(milliseconds(2), milliseconds(20));
  s_.messages.ranks[to].late_round = rounds_++;
}

// Requests between which order means something stay in theirs; the others mix, or receives come first, or sends.
void Drawing::put_in_order(std::uint32_t rank, std::uint32_t round) {
  using Line = std::tuple<bool, std::uint32_t, std::pair<std::uint32_t, std::uint64_t>>;  // sends, peer, label
  std::map<Line, std::deque<MessageRequest>> lines;
  std::vector<Line> turns;
  const auto append = [&](const MessageRequest& m, bool in_front) {
    const bool any = !m.sends && m.tag >= kAnyTag && m.tag < kAnyTag + rounds_;
    const Line line{m.sends, any ? protocol::kAnyRank : m.peer.value, m.label()};
    auto& of_line = lines[line];
    of_line.insert(in_front ? of_line.begin() : of_line.end(), m);
    turns.push_back(line);
  };
  for (const Pair& pair : pairs_) {
    if (pair.send.round != round) continue;
    if (pair.source == rank) append(pair.send, false);
    // Of a line that has receives from any source those that name one go first: in any order, their messages are alike.
    if (pair.destination == rank) append(pair.receive, !pair.receive.from_any() && pair.receive.tag == kAnyTag + round);
  }
  for (std::size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[random_.below(i)]);
  const std::uint64_t kind = random_.below(3);
  if (kind < 2)
    std::stable_partition(turns.begin(), turns.end(), [kind](const Line& l) { return std::get<0>(l) == (kind == 0); });
  for (const Line& line : turns) {
    s_.messages.ranks[rank].requests.push_back(lines[line].front());
    lines[line].pop_front();
  }
}

void Drawing::draw() {
  MessageProgram& program = s_.messages;
  program = {};
  program.ranks.resize(s_.engine.world_size);
  program.think = random_.between(microseconds(1), microseconds(400));
  program.at_once = random_.chance(0.5) ? 0.8 : 0.2;
  for (auto& rank : program.ranks) {
    if (random_.chance(0.3)) rank.late = random_.between(microseconds(1), milliseconds(3));
  }
  rounds_ = static_cast<std::uint32_t>(random_.between(1, 3));
  from_any_ = random_.chance(0.5) ? 0.3 : 0;
  any_count_ = random_.chance(0.1) ? 0 : random_.between(8, 64);
  any_dtype_ = dtype();
  hot_[0] = any_rank();
  hot_[1] = any_rank();
  for (std::uint64_t left = random_.between(1, random_.chance(0.3) ? 80 : 30); left > 0; --left) draw_pair();
  if (random_.chance(kFloods)) draw_flood();
  for (std::uint32_t rank = 0; rank < s_.engine.world_size; ++rank) {
    for (std::uint32_t round = 0; round < rounds_; ++round) put_in_order(rank, round);
  }
}

}  // namespace

void random_messages(Scenario& s) {
  Random random(mix(s.seed) ^ kOfMessages);
  s.messages = {};
  if (s.hosts() > kMostHostsWithMessages || !random.chance(kJobsWithMessages)) return;
  add_messages(s, random.next());
}

void add_messages(Scenario& s, std::uint64_t seed) {
  const auto goes_abroad = [&] {
    const auto& hosts = s.plan.rank_hosts;
    for (std::uint32_t rank = 0; rank < s.messages.ranks.size(); ++rank) {
      for (const MessageRequest& m : s.messages.ranks[rank].requests)
        if (m.sends && hosts[m.peer.value] != hosts[rank]) return true;
    }
    return false;
  };
  do {
    Drawing(s, seed).draw();
    ++seed;
  } while (s.hosts() > 1 && !goes_abroad());
}

void fill_message(std::uint64_t seed, Rank rank, std::size_t request, std::span<std::byte> buffer) {
  const std::uint64_t id = mix(seed ^ mix(std::uint64_t{rank.value} << 32 | request));
  for (std::size_t at = 0; at < buffer.size(); at += 8) {
    const std::uint64_t word = mix(id + at);
    for (std::size_t i = at; i < std::min(at + 8, buffer.size()); ++i)
      buffer[i] = static_cast<std::byte>(word >> (8 * (i - at)));
  }
}

}  // namespace tensorlane::simulator
