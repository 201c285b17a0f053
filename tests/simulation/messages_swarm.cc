// messages-swarm: hosts of daemon/engine/messages under a seed. Ranks post sends and receives in orders that the seed
// draws; frames of a flow arrive in order, those of different flows in any; some seeds abort, in some a host lies.
// Every request must come out once, every message arrive once, in order and with its bytes, and all credit come back.
#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/engine/messages/messages.h"
#include "simulator/clock/random.h"
#include "tests/simulation/small_swarm.h"

namespace tensorlane::engine {
namespace {

using protocol::FrameHeader;
using protocol::FrameType;
using simulator::Random;

constexpr std::uint8_t kClasses = 2;
constexpr JobId kJob{7};
constexpr Epoch kEpoch{3};

struct Finding {
  std::string checker, message;
};

// One request of the seed's program. Requests are numbered by their place in it.
struct Request {
  Message message;
  bool sends = false;
  bool posted = false, over = false;
  MessageDone done;
  std::vector<std::byte> bytes;                            // a receive's buffer, and a send's while it is its host's
  std::vector<std::byte> content;                          // what a send had in it
  std::optional<std::pair<std::uint64_t, Dtype>> differs;  // what the other end has posted, where that is another
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : random_(seed) {}
  std::optional<Finding> run();

 private:
  struct Frame {
    HostIndex from;
    Send send;
  };
  struct Host {
    std::unique_ptr<Messages> messages;
    std::vector<std::uint64_t> sent;  // tokens whose payload was read
    std::vector<MessageCopy> copies;  // under way
    std::vector<bool> up;             // by peer: its flows, for this host
  };
  using Label = std::pair<std::uint32_t, std::uint64_t>;           // process set and tag
  using Stream = std::tuple<std::uint32_t, std::uint32_t, Label>;  // source, destination

  void make_hosts();
  void make_program();
  void add_message(std::uint32_t source, std::uint32_t destination, const Label& label, bool any);
  void make_buffer(Request& request);
  void order_program(bool shuffled);
  bool post(std::uint32_t rank);
  bool move(std::uint16_t host);
  void bring_up(std::uint16_t host, HostIndex peer);
  bool deliver(std::size_t channel);
  bool take_outcomes(std::uint16_t host);
  bool step();
  void go_on();
  void end_all();
  void lie();
  FrameHeader lie_of(std::uint64_t kind, HostIndex from, HostIndex to);
  void look_at_end();
  void look_at_bytes();
  void find(const char* checker, std::string message) {
    if (!finding_) finding_ = {checker, std::move(message)};
  }
  std::span<std::byte> resolve(const Descriptor& d) {
    return std::span(requests_[d.region].bytes).subspan(d.offset, d.length);
  }
  Host& host_of(std::uint32_t rank) { return hosts_[config_.host_of[rank].value]; }

  Random random_;
  MessagesConfig config_;
  std::vector<Host> hosts_;
  std::vector<Request> requests_;
  std::vector<std::deque<std::uint64_t>> programs_;  // by rank: what it is still to post
  std::vector<std::deque<Frame>> channels_;          // by from, to, class
  bool ended_ = false, lied_ = false;
  std::optional<Finding> finding_;
};

void Run::make_hosts() {
  config_.job = kJob;
  config_.epoch = kEpoch;
  config_.classes = kClasses;
  config_.hosts = static_cast<std::uint16_t>(random_.between(1, 4));
  for (std::uint16_t h = 0; h < config_.hosts; ++h) {
    const std::uint64_t ranks = random_.between(1, 3);
    for (std::uint64_t r = 0; r < ranks; ++r) config_.host_of.push_back(HostIndex(h));
  }
  programs_.resize(config_.host_of.size());
  channels_.resize(std::size_t{config_.hosts} * config_.hosts * (kClasses + 1u));
}

void Run::make_buffer(Request& request) {
  request.bytes.resize(request.message.count * dtype_size(request.message.dtype));
  request.message.request = requests_.size();
  request.message.buffer = {static_cast<std::uint32_t>(requests_.size()), 0, 0, request.bytes.size()};
}

void Run::add_message(std::uint32_t source, std::uint32_t destination, const Label& label, bool any) {
  Request send{.sends = true};
  constexpr std::uint64_t kMost[] = {0, 8, 1000, 80000};
  send.message = {.source = Rank(source), .destination = Rank(destination), .set = label.first, .tag = label.second};
  send.message.count = any ? 8 : random_.below(kMost[random_.below(4)] + 1);
  send.message.dtype = any || random_.chance(0.7) ? Dtype::kFloat64 : Dtype::kInt32;
  send.message.urgency = static_cast<float>(random_.below(5)) / 4;
  send.message.cls = ClassId(static_cast<std::uint8_t>(random_.below(kClasses)));
  Request receive;
  receive.message = send.message;
  if (any) receive.message.source = kAnySource;
  if (!any && random_.chance(0.05)) {
    receive.message.count += 1;
    send.differs = {receive.message.count, receive.message.dtype};
    receive.differs = {send.message.count, send.message.dtype};
  }
  make_buffer(send);
  for (std::byte& b : send.bytes) b = static_cast<std::byte>(random_.next());
  send.content = send.bytes;
  requests_.push_back(std::move(send));
  make_buffer(receive);
  requests_.push_back(std::move(receive));
}

void Run::make_program() {
  const auto ranks = static_cast<std::uint32_t>(config_.host_of.size());
  const std::uint64_t messages = random_.between(1, 60);
  // With room for all requests any order makes progress, however few announcements there are; with room for all
  // announcements so does the order of the program, as long as both ends of a message to oneself may be open
  // and each receive waits for one message.
  const bool roomy = random_.chance(0.7);
  config_.open_per_rank = static_cast<std::uint32_t>(roomy ? 2 * messages : random_.between(2, 4));
  config_.announcements = static_cast<std::uint32_t>(roomy ? random_.between(1, 6) : messages);
  const std::uint64_t tag_of_two = random_.next();
  const Label labels[] = {{0, tag_of_two}, {7, tag_of_two}, {0, random_.next()}};  // some share a place in tables
  for (std::uint64_t m = 0; m < messages; ++m) {
    const auto source = static_cast<std::uint32_t>(random_.below(ranks));
    const auto destination = static_cast<std::uint32_t>(random_.below(ranks));
    const std::uint64_t tag = random_.below(3);
    add_message(source, destination, labels[tag], roomy && tag == 2);  // one tag is received from any source
  }
  order_program(roomy);
}

// Between requests of one stream the order stays, since a receive knows what it is to get.
void Run::order_program(bool shuffled) {
  std::map<std::pair<bool, Stream>, std::deque<std::uint64_t>> waiting;
  std::vector<std::pair<bool, Stream>> turns;
  for (std::uint64_t i = 0; i < requests_.size(); ++i) {
    const Message& m = requests_[i].message;
    turns.emplace_back(requests_[i].sends, Stream{m.source.value, m.destination.value, {m.set, m.tag}});
    waiting[turns.back()].push_back(i);
  }
  for (std::size_t i = turns.size(); shuffled && i > 1; --i) std::swap(turns[i - 1], turns[random_.below(i)]);
  for (const auto& turn : turns) {
    const std::uint64_t request = waiting[turn].front();
    waiting[turn].pop_front();
    const Message& m = requests_[request].message;
    programs_[(requests_[request].sends ? m.source : m.destination).value].push_back(request);
  }
}

bool Run::post(std::uint32_t rank) {
  if (programs_[rank].empty()) return false;
  Request& request = requests_[programs_[rank].front()];
  Messages& messages = *host_of(rank).messages;
  const Status status =
      request.sends ? messages.send(Time(1), request.message) : messages.receive(Time(1), request.message);
  if (!status.ok()) {
    // What is over makes room at once.
    const auto open = std::ranges::count_if(requests_, [&](const Request& r) {
      return r.posted && !r.over && (r.sends ? r.message.source : r.message.destination).value == rank;
    });
    if (status.code() != Code::kResourceExhausted || open < config_.open_per_rank) find("post", status.to_string());
    return false;
  }
  request.posted = true;
  programs_[rank].pop_front();
  return true;
}

// Something that a host could do.
bool Run::move(std::uint16_t index) {
  Host& host = hosts_[index];
  const auto slot = static_cast<std::uint8_t>(random_.below(kClasses + 1u));
  const ClassId cls = slot == kClasses ? kControlClass : ClassId(slot);
  HostIndex peer;
  Send send;
  bool moved = false;
  if (random_.chance(0.3)) bring_up(index, HostIndex(static_cast<std::uint16_t>(random_.below(config_.hosts))));
  if (host.messages->next_flow(cls, HostIndex(static_cast<std::uint16_t>(random_.below(config_.hosts))), &peer)) {
    if (!host.up[peer.value]) find("flows", fmt::format("host {} has something for a flow that is not up", index));
    if (host.messages->pick({peer, cls}, kMaxOperation, std::span(&send, 1)) == 0) {
      find("pick", fmt::format("host {} has something for host {} and does not give it out", index, peer.value));
      return false;
    }
    channels_[(std::size_t{index} * config_.hosts + peer.value) * (kClasses + 1u) + slot].push_back(
        {HostIndex(index), send});
    moved = true;
  }
  MessageCopy copy;
  if (random_.chance(0.5) && host.messages->pick_copy(&copy)) {
    host.copies.push_back(copy);
    moved = true;
  }
  if (!host.copies.empty() && random_.chance(0.5)) {
    std::swap(host.copies[random_.below(host.copies.size())], host.copies.back());
    copy = host.copies.back();
    host.copies.pop_back();
    std::ranges::copy(resolve(copy.from), resolve(copy.to).begin());
    host.messages->copied(copy.token);
    moved = true;
  }
  if (!host.sent.empty() && random_.chance(0.5)) {
    host.messages->sent(host.sent.back());
    host.sent.pop_back();
    moved = true;
  }
  return take_outcomes(index) || moved;
}

// Flows come up one after the other, and not at both ends at once.
void Run::bring_up(std::uint16_t index, HostIndex peer) {
  Host& host = hosts_[index];
  if (host.up[peer.value] || peer.value == index) return;
  host.up[peer.value] = true;
  host.messages->peer_up(peer);
}

bool Run::deliver(std::size_t channel) {
  std::deque<Frame>& frames = channels_[channel];
  if (frames.empty()) return false;
  const Frame frame = frames.front();
  frames.pop_front();
  const std::size_t to = channel / (kClasses + 1u) % config_.hosts;
  Messages& messages = *hosts_[to].messages;
  const FrameHeader& h = frame.send.header;
  if (h.payload_bytes > 0) {
    const Result<Descriptor> place = messages.landing(frame.from, h);
    if (!place.ok()) {
      if (!lied_) find("protocol", place.status().to_string());
      end_all();
      return true;
    }
    if (place->length == 0 && !lied_) find("protocol", "a payload without a place");
    if (place->length > 0) std::ranges::copy(resolve(frame.send.payload), resolve(*place).begin());
    hosts_[frame.from.value].sent.push_back(frame.send.token);
  }
  const char* fault = messages.take_frame(Time(1), frame.from, h);
  if (fault == nullptr) return true;
  if (!lied_) find("protocol", fault);
  end_all();
  return true;
}

bool Run::take_outcomes(std::uint16_t index) {
  MessageDone done;
  bool any = false;
  for (; hosts_[index].messages->next_done(&done); any = true) {
    Request& request = requests_[done.request];
    const Rank self = request.sends ? request.message.source : request.message.destination;
    if (!request.posted || request.over || config_.host_of[self.value].value != index) {
      find("once", fmt::format("request {} is over twice, or was not posted", done.request));
      return true;
    }
    request.over = true;
    request.done = done;
    // The buffer is the program's again.
    if (request.sends && done.code != Code::kAborted) std::ranges::fill(request.bytes, std::byte{0xee});
  }
  return any;
}

bool Run::step() {
  const std::size_t ranks = programs_.size(), hosts = hosts_.size();
  const std::size_t all = ranks + hosts + channels_.size();
  const std::size_t at = random_.below(all);
  if (at < ranks) return post(static_cast<std::uint32_t>(at));
  if (at < ranks + hosts) return move(static_cast<std::uint16_t>(at - ranks));
  return deliver(at - ranks - hosts);
}

void Run::go_on() {
  const std::uint64_t end = random_.chance(0.15) ? random_.below(2000) : ~std::uint64_t{0};
  const std::uint64_t lie_at = hosts_.size() > 1 && random_.chance(0.2) ? random_.below(500) : ~std::uint64_t{0};
  // No step out of this many in a row did anything: with some dozens of choices, nothing can.
  constexpr std::uint64_t kIdle = 3000;
  std::uint64_t idle = 0;
  for (std::uint64_t i = 0; idle < kIdle && !finding_ && !ended_; ++i) {
    idle = step() ? 0 : idle + 1;
    for (std::uint16_t h = 0; idle == kIdle / 2 && h < hosts_.size(); ++h) {
      for (std::uint16_t peer = 0; peer < hosts_.size(); ++peer) bring_up(h, HostIndex(peer));
    }
    if (i == lie_at) lie();
    if (i == end) end_all();
  }
}

// The job is over: what was on its way is lost, and what is open fails.
void Run::end_all() {
  if (ended_) return;
  ended_ = true;
  for (Host& host : hosts_) host.messages->abort();
  for (auto& channel : channels_) channel.clear();
  for (std::uint16_t h = 0; h < hosts_.size(); ++h) {
    hosts_[h].messages->drained();
    take_outcomes(h);
  }
}

FrameHeader Run::lie_of(std::uint64_t kind, HostIndex from, HostIndex to) {
  const auto first_of = [&](HostIndex host) {
    return static_cast<std::uint32_t>(std::ranges::find(config_.host_of, host) - config_.host_of.begin());
  };
  FrameHeader h{.type = FrameType::kMessage, .cls = kControlClass, .job = kJob, .epoch = kEpoch, .grant = 1};
  h.tensor = TensorId(first_of(from));
  h.slice = first_of(to);
  h.sequence = Sequence(1);
  h.offset = 8;
  if (kind == 0) h.job = JobId(8);
  if (kind == 1) h.epoch = Epoch(4);
  if (kind == 2) h.tensor = TensorId(first_of(to));
  if (kind == 3) h.slice = first_of(from);
  if (kind == 4) h.aux = 99;
  if (kind == 5) h.offset = ~std::uint64_t{0};
  if (kind == 6) h.grant = 0;
  if (kind == 7) h.tensor = TensorId(1000);
  if (kind >= 8) h.aux = 0xfff00000 + static_cast<std::uint32_t>(random_.below(100));
  if (kind == 8) h.type = FrameType::kMessageGrant;
  if (kind == 9) h.type = FrameType::kMessageRefused;
  if (kind == 10) h.type = FrameType::kReady;
  return h;
}

// One host tells another what breaks the protocol, which must be said of it; and announces without end.
void Run::lie() {
  lied_ = true;
  const HostIndex from(static_cast<std::uint16_t>(random_.below(hosts_.size())));
  const HostIndex to(static_cast<std::uint16_t>((from.value + 1 + random_.below(hosts_.size() - 1)) % hosts_.size()));
  Messages& messages = *hosts_[to.value].messages;
  constexpr std::uint64_t kKinds = 12;
  const std::uint64_t kind = random_.below(kKinds);
  const char* fault = nullptr;
  if (kind + 1 < kKinds) {
    fault = messages.take_frame(Time(1), from, lie_of(kind, from, to));
  } else {
    FrameHeader h = lie_of(100, from, to);
    h.aux = 0;
    h.sequence = Sequence(77);  // nobody receives it
    for (std::uint32_t i = 0; fault == nullptr && i <= config_.announcements; ++i)
      fault = messages.take_frame(Time(1), from, h);
  }
  // Payload for what was not granted: nothing, or a fault.
  FrameHeader data{.type = FrameType::kData, .flags = protocol::kFlagMessage, .job = kJob, .epoch = kEpoch};
  data.payload_bytes = static_cast<std::uint32_t>(random_.between(1, 100000));
  data.grant = static_cast<std::uint32_t>(random_.below(1u << 22));
  const Result<Descriptor> place = messages.landing(from, data);
  if (place.ok() && place->length > 0 && place->length != data.payload_bytes)
    find("hostile", "a place of another size");
  if (fault == nullptr) find("hostile", fmt::format("lie {} was believed", kind));
  end_all();
}

void Run::look_at_end() {
  for (std::uint64_t i = 0; i < requests_.size(); ++i) {
    const Request& r = requests_[i];
    if (r.posted && r.over) continue;
    if (ended_ && !r.posted) continue;
    return find("progress",
                fmt::format("request {} is not over: {} of rank {} and {}, tag {}", i, r.sends ? "send" : "receive",
                            r.message.source.value, r.message.destination.value, r.message.tag));
  }
  for (std::uint16_t h = 0; h < hosts_.size(); ++h) {
    for (std::uint16_t peer = 0; peer < hosts_.size(); ++peer) {
      const Messages::Lent lent = hosts_[h].messages->lent(HostIndex(peer));
      const bool back = lent.open == 0 && (ended_ || (lent.announced == 0 && lent.unanswered == 0));
      if (!back)
        return find("credits", fmt::format("host {} keeps {} requests, {} announced to host {}, {} unanswered", h,
                                           lent.open, lent.announced, peer, lent.unanswered));
    }
  }
  if (!ended_) look_at_bytes();
}

// Receives, in the order in which they were posted (which is that of the program inside a stream), got the messages of
// each source in order.
void Run::look_at_bytes() {
  std::map<Stream, std::deque<std::uint64_t>> sent;
  for (std::uint64_t i = 0; i < requests_.size(); ++i) {
    const Message& m = requests_[i].message;
    if (requests_[i].sends) sent[{m.source.value, m.destination.value, {m.set, m.tag}}].push_back(i);
  }
  for (std::uint64_t i = 0; i < requests_.size(); ++i) {
    const Request& got = requests_[i];
    if (got.sends) continue;
    auto& stream = sent[{got.done.source.value, got.message.destination.value, {got.message.set, got.message.tag}}];
    if (stream.empty()) return find("delivery", fmt::format("receive {} got a message of nobody", i));
    const Request& send = requests_[stream.front()];
    stream.pop_front();
    const Code expected = got.differs ? Code::kMismatch : Code::kOk;
    if (got.done.code != expected || send.done.code != expected)
      return find("delivery", fmt::format("receive {} ended as '{}', its send as '{}'", i, code_name(got.done.code),
                                          code_name(send.done.code)));
    for (const Request* r : {&got, &send}) {
      if (r->differs && *r->differs != std::pair(r->done.other_count, r->done.other_dtype))
        return find("delivery", fmt::format("receive {}: a mismatch names other values than were posted", i));
    }
    if (expected == Code::kOk && got.bytes != send.content)
      return find("delivery", fmt::format("receive {} has other bytes than its message", i));
  }
}

std::optional<Finding> Run::run() {
  make_hosts();
  make_program();
  for (std::uint16_t h = 0; h < config_.hosts; ++h) {
    config_.self = HostIndex(h);
    hosts_.push_back({std::make_unique<Messages>(config_), {}, {}, std::vector<bool>(config_.hosts)});
  }
  go_on();
  if (!finding_) look_at_end();
  return finding_;
}

}  // namespace
}  // namespace tensorlane::engine

int main(int argc, char** argv) {
  return tensorlane::simulation::swarm_main(argc, argv, "messages-swarm",
                                            "Runs hosts that send messages to each other under a seed.",
                                            [](std::uint64_t seed) { return tensorlane::engine::Run(seed).run(); });
}
