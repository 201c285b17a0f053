// Flows that have lost their connection: the end with the lower index dials again, both agree on what was delivered
// (exchange.h), and the flow goes on; or the time is up and it goes down.
#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/tcp/transport_impl.h"

namespace tensorlane::tcp {
namespace {

// Before the next attempt where the last connection was of no use.
constexpr Duration kIdleBackoff = milliseconds(10);

std::uint64_t random_identity() {
  std::uint64_t identity = 0;
  while (identity == 0) ::randombytes_buf(&identity, sizeof identity);
  return identity;
}

}  // namespace

// ---- losing ----

void TcpTransport::fail_flow(Flow& flow, Status cause) {
  if (flow.resumable() && connector_.jobs().contains(flow.key().job)) return lose_connection(flow, std::move(cause));
  end_flow(flow, std::move(cause));
}

void TcpTransport::read_rest(Flow& flow, std::size_t& handled) {
  if (!flow.resumes()) return;
  for (std::uint64_t before = ~std::uint64_t{0}; !flow.gone && before != flow.bytes_received();) {
    before = flow.bytes_received();
    if (!flow.read(sink_, buffers_, handled).ok()) return;
  }
}

void TcpTransport::lose_connection(Flow& flow, Status cause) {
  const ports::FlowKey key = flow.key();
  flow.disconnect();
  if (std::exchange(flow.dirty, false)) std::erase(find_class(key.cls)->dirty, &flow);
  flow.watches_output = false;
  // A connection that is lost again before anything has come of it gets no time of its own.
  const bool first = flow.lost_deadline == Time() || flow.progress() != flow.lost_progress;
  if (first) {
    flow.lost_deadline = now_ + flow.job().resume_within();
    flow.lost_progress = flow.progress();
  }
  spdlog::warn("{}: it is made anew", cause.to_string());
  flow.lost_cause = std::move(cause);
  next_lost_deadline_ = std::min(next_lost_deadline_, flow.lost_deadline);
  connector_.waker().kick();
  const auto place = places_.find(key);
  if (place == places_.end()) return;  // the peer comes to us
  const Status dialling = connector_.redial(key, place->second.address, place->second.data_port,
                                            first ? now_ : now_ + kIdleBackoff, flow.lost_deadline);
  if (!dialling.ok()) give_up(flow, dialling);
}

void TcpTransport::give_up(Flow& flow, const Status& why) {
  const Status& lost = flow.lost_cause;
  end_flow(flow, {lost.code(), fmt::format("{}, and could not be resumed: {}", lost.what(), why.what()), lost.where(),
                  why.fix().empty() ? lost.fix() : why.fix()});
}

void TcpTransport::give_up_lost() {
  if (now_ < next_lost_deadline_) return;
  next_lost_deadline_ = handshake::Connector::never();
  std::vector<Flow*> late;
  for (const auto& [key, flow] : flows_) {
    if (flow->connected()) continue;
    if (flow->lost_deadline > now_) {
      next_lost_deadline_ = std::min(next_lost_deadline_, flow->lost_deadline);
    } else {
      late.push_back(flow.get());
    }
  }
  for (Flow* flow : late) {
    give_up(*flow, {Code::kTimedOut,
                    fmt::format("no new connection within {:.1f} s", to_seconds(flow->job().resume_within()))});
  }
}

// ---- resuming ----

FlowOffer TcpTransport::offer_flow(const ports::FlowKey& key) {
  const auto found = flows_.find(key);
  if (found == flows_.end()) return {{random_identity(), 0}};
  Flow& flow = *found->second;
  return {flow.identity(), flow.delivered(), ++flow.offers};
}

Result<FlowOffer> TcpTransport::answer_flow(const ports::FlowKey& key, const FlowParameters& peer) {
  if (peer.to == 0) {  // the peer has no flow: it begins, or has started again
    const FlowIdentity identity{random_identity(), peer.from};
    agreed_[key] = identity;
    return FlowOffer{identity};
  }
  if (const auto found = flows_.find(key); found != flows_.end()) {
    Flow& flow = *found->second;
    if (flow.identity().mine == peer.to && flow.identity().peers == peer.from) {
      if (flow.connected()) lose_connection(flow, flow.broken(Code::kUnavailable, "was lost by the peer"));
      return FlowOffer{flow.identity(), flow.delivered(), ++flow.offers};
    }
  } else if (const auto agreed = agreed_.find(key);
             agreed != agreed_.end() && agreed->second.mine == peer.to && agreed->second.peers == peer.from) {
    return FlowOffer{agreed->second};  // it came up there, and is about to here
  }
  return Status(Code::kUnavailable, "the flow to resume is not here any more", {},
                "look at the log of tensorlaned on that host");
}

bool TcpTransport::can_resume(const ports::FlowKey& key, ledger::Number delivered) const {
  const auto found = flows_.find(key);
  return found != flows_.end() && found->second->can_resume(delivered);
}

void TcpTransport::resume_flow(Flow& flow, handshake::Connection& connection, const FlowExchange& exchange) {
  // Another connection has been agreed on since, or has been in use: what was said on this one is old.
  if (flow.connected() || exchange.mine().number != flow.offers) return;
  ++flow.offers;
  const std::uint64_t again = flow.resume(connection.take_socket(), exchange.peer_has(), sink_);
  if (flow.gone) return;
  serve(flow);
  ++flows_resumed_;
  frames_resent_ += again;
  ++connected_;
  spdlog::info("{} was resumed: {} frames are sent again",
               handshake::connection_name(flow.key().peer, handshake::peer_endpoint(flow.fd()).text(), flow.key().cls),
               again);
  if (!flow.queue_empty()) mark_dirty(flow);
}

}  // namespace tensorlane::tcp
