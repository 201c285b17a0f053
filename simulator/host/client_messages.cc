#include "simulator/host/client_messages.h"

#include <algorithm>
#include <utility>

namespace tensorlane::simulator {
namespace {

constexpr std::uint64_t kOfClients = 0x6d73'6773'0000'0000;
constexpr std::uint64_t kMostGap = 8;  // words between two buffers

// What a client leaves in memory that is its own.
std::byte left_at(std::uint64_t offset) {
  return static_cast<std::byte>(0xc3 ^ (offset * 13) ^ (offset >> 8));
}

}  // namespace

ClientMessages::ClientMessages(HostIndex host, Rank rank, Context context)
    : host_(host),
      rank_(rank),
      context_(std::move(context)),
      random_(mix(context_.scenario.seed) ^ mix(kOfClients + rank.value)) {
  if (!requests().empty()) lay_out();
}

const std::vector<MessageRequest>& ClientMessages::requests() const {
  static const std::vector<MessageRequest> none;
  const MessageProgram& program = context_.scenario.messages;
  return program.empty() ? none : program.ranks[rank_.value].requests;
}

// The buffers of a round lie beside each other in any order; those of the next take their places.
void ClientMessages::lay_out() {
  std::uint64_t most = 0;
  places_.resize(requests().size());
  for (std::size_t begin = 0, end = 0; begin < places_.size(); begin = end) {
    while (end < places_.size() && requests()[end].round == requests()[begin].round) ++end;
    std::vector<std::size_t> order(end - begin);
    for (std::size_t i = begin; i < end; ++i) order[i - begin] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    std::uint64_t at = 0;
    for (const std::size_t i : order) {
      places_[i] = at += 8 * random_.below(kMostGap);
      at += (requests()[i].bytes() + 7) / 8 * 8;
    }
    most = std::max(most, at);
  }
  arena_ = context_.memory.allocate(most + 8, context_.scenario.user);
  std::uint64_t offset = 0;
  for (std::byte& b : context_.memory.resolve(arena_)) b = left_at(offset++);
}

std::span<std::byte> ClientMessages::buffer(std::size_t request) const {
  return context_.memory.resolve(arena_.slice(places_[request], requests()[request].bytes()));
}

void ClientMessages::start() {
  if (std::exchange(started_, true) || requests().empty()) return;
  schedule();
}

void ClientMessages::schedule() {
  if (scheduled_ || !may_post()) return;
  scheduled_ = true;
  const MessageProgram::OfRank& program = context_.scenario.messages.ranks[rank_.value];
  const bool late =
      requests()[next_].round >= program.late_round && (next_ == 0 || requests()[next_ - 1].round < program.late_round);
  Duration waits = random_.between(Duration(0), context_.scenario.messages.think);
  if (late) waits = waits + program.late;
  context_.events.after(waits, [this] {
    scheduled_ = false;
    act();
  });
}

bool ClientMessages::may_post() const {
  if (frozen_ || dead_ || failed_ || next_ == requests().size() || open_.size() == protocol::kMessageSlots)
    return false;
  return open_.empty() || requests()[open_.begin()->second].round == requests()[next_].round;
}

void ClientMessages::act() {
  while (may_post()) {
    post();
    if (!random_.chance(context_.scenario.messages.at_once)) break;
  }
  schedule();
}

std::uint32_t ClientMessages::free_slot() {
  auto slot = static_cast<std::uint32_t>(random_.below(protocol::kMessageSlots));
  while (open_.contains(slot)) slot = (slot + 1) % protocol::kMessageSlots;
  return slot;
}

// Where there are no bytes, place and segment may be any.
protocol::MessageSlot ClientMessages::slot_of(std::size_t request) {
  const MessageRequest& m = requests()[request];
  protocol::MessageSlot slot{.peer = m.peer.value, .sends = m.sends, .dtype = m.dtype, .tag = m.tag, .count = m.count};
  slot.urgency = m.urgency;
  slot.set = m.set;
  slot.segment = static_cast<std::uint32_t>(context_.scenario.plan.tensors.size());
  slot.offset = places_[request];
  if (m.bytes() > 0) return slot;
  slot.segment = static_cast<std::uint32_t>(random_.next());
  slot.offset = random_.next();
  return slot;
}

void ClientMessages::post() {
  const std::size_t request = next_++;
  const MessageRequest& m = requests()[request];
  check_untouched(places_[request], places_[request] + m.bytes());
  if (m.sends) fill_message(context_.scenario.seed, rank_, request, buffer(request));
  const std::uint32_t slot = free_slot();
  open_.emplace(slot, request);
  context_.checker.posted(rank_, request);
  context_.trace.line(host_, "rank {} posts request {} in slot {}: {} rank {}, tag {}, {} bytes", rank_.value, request,
                      slot, m.sends ? "to" : "from", static_cast<std::int32_t>(m.peer.value), m.tag, m.bytes());
  context_.post(slot, slot_of(request));
}

void ClientMessages::ended(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) {
  const auto found = open_.find(slot);
  if (found == open_.end()) {
    return context_.findings.fail("messages", "rank {} is told that its slot {} is over, which is not open",
                                  rank_.value, slot);
  }
  const std::size_t request = found->second;
  const MessageRequest& m = requests()[request];
  context_.trace.line(host_, "rank {}: request {} in slot {} ends: {}", rank_.value, request, slot, code_name(code));
  if (code == Code::kMismatch && !m.sends) check_untouched(places_[request], places_[request] + m.bytes());
  context_.checker.ended(rank_, request, code, outcome, buffer(request));
  open_.erase(found);
  leave(request);
  failed_ = failed_ || code == Code::kAborted;
  schedule();
}

void ClientMessages::fail() {
  failed_ = true;
  for (const auto& [slot, request] : open_) leave(request);
  open_.clear();
}

void ClientMessages::set_frozen(bool frozen) {
  frozen_ = frozen;
  if (started_) schedule();
}

// What is ours again gets other contents at once: whoever still reads or writes it is found out.
void ClientMessages::leave(std::size_t request) {
  std::uint64_t offset = places_[request];
  for (std::byte& b : buffer(request)) b = left_at(offset++);
}

void ClientMessages::check_untouched(std::uint64_t from, std::uint64_t to) const {
  const std::span<const std::byte> arena = context_.memory.resolve(arena_);
  for (std::uint64_t at = from; at < to; ++at) {
    if (arena[at] == left_at(at)) continue;
    return context_.findings.fail("memory", "rank {}: byte {} of its messages' memory was written, where none is open",
                                  rank_.value, at);
  }
}

void ClientMessages::check_arena() const {
  if (requests().empty()) return;
  std::vector<std::size_t> open;
  for (const auto& [slot, request] : open_) open.push_back(request);
  std::ranges::sort(open, {}, [this](std::size_t request) { return places_[request]; });
  std::uint64_t at = 0;
  for (const std::size_t request : open) {
    check_untouched(at, places_[request]);
    at = std::max(at, places_[request] + requests()[request].bytes());
  }
  check_untouched(at, arena_.length);
}

std::string ClientMessages::describe_open() const {
  std::string text;
  if (!requests().empty()) text = fmt::format(" messages {} of {}", next_, requests().size());
  for (const auto& [slot, request] : open_) {
    const MessageRequest& m = requests()[request];
    if (text.size() < 400) text += fmt::format(" {}{}:{:x}", m.sends ? ">" : "<", m.peer.value, m.tag);
  }
  return text;
}

}  // namespace tensorlane::simulator
