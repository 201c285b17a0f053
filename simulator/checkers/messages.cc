#include "simulator/checkers/messages.h"

#include <algorithm>

#include "daemon/engine/messages/messages.h"

namespace tensorlane::simulator {

using protocol::FrameType;
using protocol::MessageSlot;

MessageChecker::MessageChecker(const Scenario& scenario, Findings& findings)
    : scenario_(scenario), findings_(findings), requests_(scenario.messages.ranks.size()) {
  for (std::uint32_t r = 0; r < requests_.size(); ++r) {
    const auto& program = scenario.messages.ranks[r].requests;
    requests_[r].resize(program.size());
    for (std::size_t i = 0; i < program.size(); ++i) {
      const MessageRequest& m = program[i];
      if (m.from_any()) {
        pools_[{Rank(r), m.set, m.tag}];
        continue;
      }
      Stream& stream =
          streams_[m.sends ? StreamKey{Rank(r), m.peer, m.set, m.tag} : StreamKey{m.peer, Rank(r), m.set, m.tag}];
      auto& line = m.sends ? stream.sends : stream.receives;
      requests_[r][i].place = line.size();
      line.push_back({Rank(r), i});
    }
  }
}

MessageChecker::Pool* MessageChecker::pool_of(Rank destination, const MessageRequest& of) {
  const auto found = pools_.find({destination, of.set, of.tag});
  return found == pools_.end() ? nullptr : &found->second;
}

// ---- ranks ----

void MessageChecker::posted(Rank rank, std::size_t request) {
  const Name name{rank, request};
  state(name).posted = true;
  Pool* pool = asked(name).sends ? nullptr : pool_of(rank, asked(name));
  if (pool != nullptr) ++pool->posted;
}

void MessageChecker::ended(Rank rank, std::size_t request, Code code, const MessageSlot& outcome,
                           std::span<const std::byte> buffer) {
  const Name name{rank, request};
  if (!state(name).posted || std::exchange(state(name).over, true))
    return fail("rank {}: request {} ends, which is not open", rank.value, request);
  for (const std::uint64_t number : {std::uint64_t{rank.value}, std::uint64_t{request},
                                     static_cast<std::uint64_t>(code), std::uint64_t{outcome.other_rank}}) {
    digest_.add(number);
  }
  if (code == Code::kAborted) return;  // whether it may, its job knows
  if (code != Code::kOk && code != Code::kMismatch)
    return fail("rank {}: request {} ends as '{}'", rank.value, request, code_name(code));
  if (asked(name).sends) return send_ended(name, code, outcome, buffer);
  receive_ended(name, code, outcome, buffer);
}

bool MessageChecker::holds(Name send, std::span<const std::byte> buffer) const {
  std::vector<std::byte> right(asked(send).bytes());
  fill_message(scenario_.seed, send.rank, send.request, right);
  return std::ranges::equal(right, buffer);
}

// A send is over when its receive has got it, or differs.
void MessageChecker::send_ended(Name name, Code code, const MessageSlot& outcome, std::span<const std::byte> buffer) {
  const MessageRequest& sent = asked(name);
  if (outcome.other_rank != sent.peer.value)
    return fail("rank {}: a send to rank {} ends with rank {}", name.rank.value, sent.peer.value, outcome.other_rank);
  if (!holds(name, buffer)) return fail("rank {}: the buffer of send {} was written", name.rank.value, name.request);
  std::uint64_t other_count = sent.count;
  if (Pool* pool = pool_of(sent.peer, sent)) {
    if (++pool->sent > pool->posted) {
      return fail("{} sends to rank {} with tag {} are over, and {} receives are posted", pool->sent, sent.peer.value,
                  sent.tag, pool->posted);
    }
  } else {
    const Stream& stream = streams_.at({name.rank, sent.peer, sent.set, sent.tag});
    const Name receive = stream.receives[state(name).place];
    other_count = asked(receive).count;
    if (!state(receive).posted)
      return fail("rank {}: send {} is over before its receive is posted", name.rank.value, name.request);
  }
  const bool differ = other_count != sent.count;
  if ((code == Code::kMismatch) == differ && outcome.other_count == other_count && outcome.other_dtype == sent.dtype)
    return;
  fail("rank {}: send {} of {} elements to a receive of {} ends as '{}', and with {}", name.rank.value, name.request,
       sent.count, other_count, code_name(code), outcome.other_count);
}

void MessageChecker::receive_ended(Name name, Code code, const MessageSlot& outcome,
                                   std::span<const std::byte> buffer) {
  const MessageRequest& receive = asked(name);
  const Rank source(outcome.other_rank);
  if (!receive.from_any() && source != receive.peer)
    return fail("rank {}: a receive from rank {} ends with rank {}", name.rank.value, receive.peer.value, source.value);
  const auto found = streams_.find({source, name.rank, receive.set, receive.tag});
  if (found == streams_.end() || found->second.sends.empty()) {
    return fail("rank {}: a receive got a message of rank {} with tag {}, which that has not sent", name.rank.value,
                source.value, receive.tag);
  }
  Stream& stream = found->second;
  if (pool_of(name.rank, receive) == nullptr) return got(name, stream.sends[state(name).place], code, outcome, buffer);
  if (code != Code::kOk)
    return fail("rank {}: receive {} ends as '{}'", name.rank.value, name.request, code_name(code));
  got_from_pool(name, stream, buffer, outcome);
}

// Which of them it is its bytes say. Of messages without bytes any is as good.
void MessageChecker::got_from_pool(Name receive, Stream& stream, std::span<const std::byte> buffer,
                                   const MessageSlot& outcome) {
  const auto send = std::ranges::find_if(
      stream.sends, [&](Name s) { return state(s).posted && !state(s).received && holds(s, buffer); });
  if (send == stream.sends.end()) {
    return fail("rank {}: receive {} with tag {} has none of the messages that rank {} has sent to it",
                receive.rank.value, receive.request, asked(receive).tag, outcome.other_rank);
  }
  got(receive, *send, Code::kOk, outcome, buffer);
  if (buffer.empty()) return;
  const std::size_t place = state(*send).place;
  const auto at = stream.got.emplace(receive.request, place).first;
  const bool before = at == stream.got.begin() || std::prev(at)->second < place;
  const bool behind = std::next(at) == stream.got.end() || place < std::next(at)->second;
  if (before && behind) return;
  fail("rank {}: of the messages of rank {} with tag {} receive {} got the {}., out of order", receive.rank.value,
       outcome.other_rank, asked(receive).tag, receive.request, place + 1);
}

void MessageChecker::got(Name name, Name from, Code code, const MessageSlot& outcome,
                         std::span<const std::byte> buffer) {
  const MessageRequest &receive = asked(name), &send = asked(from);
  if (!state(from).posted || std::exchange(state(from).received, true)) {
    return fail("rank {}: receive {} got send {} of rank {}, which was not posted, or has another receive",
                name.rank.value, name.request, from.request, from.rank.value);
  }
  const bool differ = receive.count != send.count || receive.dtype != send.dtype;
  if ((code == Code::kMismatch) != differ || outcome.other_count != send.count || outcome.other_dtype != send.dtype) {
    return fail("rank {}: receive {} of {} elements of a message of {} ends as '{}', and with {}", name.rank.value,
                name.request, receive.count, send.count, code_name(code), outcome.other_count);
  }
  if (code != Code::kOk) return;
  if (!holds(from, buffer)) {
    return fail("rank {}: receive {}, from rank {} with tag {}, has other bytes than its message", name.rank.value,
                name.request, from.rank.value, receive.tag);
  }
  ++received_;
  bytes_ += buffer.size();
}

// ---- hosts ----

void MessageChecker::sent(const Frame& frame) {
  const protocol::FrameHeader& h = frame.header;
  if (h.type == FrameType::kMessage) {
    announced_[{frame.from, frame.to, h.grant}] = h.offset * dtype_size(static_cast<Dtype>(h.aux));
    if (++unanswered_[{frame.from, frame.to}] <= engine::MessagesConfig().announcements) return;
    findings_.fail("bounds", "host {} has announced {} messages to host {} that are not answered", frame.from.value,
                   unanswered_[{frame.from, frame.to}], frame.to.value);
  } else if (h.type == FrameType::kMessageGrant || h.type == FrameType::kMessageRefused) {
    const auto found = announced_.find({frame.to, frame.from, h.aux});
    if (found == announced_.end())
      return fail("host {} answers host {} what was not announced, or twice", frame.from.value, frame.to.value);
    if (h.type == FrameType::kMessageGrant && found->second > 0)
      grants_[{frame.from, frame.to, h.grant}] = {found->second, 0};
    announced_.erase(found);
  }
}

void MessageChecker::landed(const Frame& frame) {
  const protocol::FrameHeader& h = frame.header;
  if (h.type == FrameType::kMessageGrant || h.type == FrameType::kMessageRefused) --unanswered_[{frame.to, frame.from}];
  if (h.type != FrameType::kData) return;
  const auto found = grants_.find({frame.to, frame.from, h.grant});
  if (found == grants_.end() || h.offset != found->second.landed) {
    return fail("host {} got {} bytes of a message of host {} twice, out of order, or unasked", frame.to.value,
                h.payload_bytes, frame.from.value);
  }
  found->second.landed += h.payload_bytes;
  if (found->second.landed == found->second.bytes) grants_.erase(found);
}

void MessageChecker::check_quiet() const {
  for (const auto& [hosts, count] : unanswered_) {
    if (count == 0) continue;
    findings_.fail("credits", "all is over, but host {} waits for {} answers of host {}", hosts.first.value, count,
                   hosts.second.value);
  }
  for (std::uint32_t r = 0; r < requests_.size(); ++r) {
    for (std::size_t i = 0; i < requests_[r].size(); ++i) {
      const Request& request = requests_[r][i];
      const bool is_send = scenario_.messages.ranks[r].requests[i].sends;
      if (!request.over || (is_send && !request.received)) fail("all is over, but not request {} of rank {}", i, r);
    }
  }
}

}  // namespace tensorlane::simulator
