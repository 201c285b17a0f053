// Flows that are up: their turns at writing and reading, how they begin, lose their connection and end.
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/tcp/transport_impl.h"

namespace tensorlane::tcp {
namespace {

// Flows of a class are read in one poll until so much has come: then the next class has its turn, and the lane gets to
// act on it. So a class that always has something keeps no other one unread.
constexpr std::uint64_t kReadPerClass = kBlockBytes;

}  // namespace

void TcpTransport::write_dirty(std::size_t& handled) {
  classes_.each([&](ClassShare& share) {
    // Callbacks may queue more: that is for the next poll.
    writing_.swap(share.dirty);
    for (Flow* flow : writing_) {
      flow->dirty = false;
      if (!flow->gone && flow->connected()) write_flow(*flow, handled);
    }
    writing_.clear();
  });
}

void TcpTransport::write_flow(Flow& flow, std::size_t& handled) {
  Status status = flow.write(handled);
  if (flow.gone) return;
  if (!status.ok()) {
    read_rest(flow, handled);
    if (!flow.gone) fail_flow(flow, std::move(status));
    return;
  }
  if (flow.blocked() != flow.watches_output) {
    flow.watches_output = flow.blocked();
    connector_.watch(flow, flow.fd(), flow.blocked() ? EPOLLIN | EPOLLOUT : EPOLLIN, true);
  }
  if (!flow.queue_empty()) flow.mark_dirty();
}

void TcpTransport::serve_flows(std::size_t& handled) {
  std::sort(ready_.begin(), ready_.end(), [](const Ready& a, const Ready& b) {
    const std::uint8_t class_a = a.flow->key().cls.value + 1,
                       class_b = b.flow->key().cls.value + 1;  // control, 0xff, becomes 0
    return class_a != class_b ? class_a < class_b : a.flow->last_turn < b.flow->last_turn;
  });
  std::uint64_t read = 0;
  ClassId reading = kControlClass;
  for (const auto [flow, events] : ready_) {
    if (flow->gone || !flow->connected()) continue;
    if (flow->key().cls != reading) read = 0;
    reading = flow->key().cls;
    if (read >= kReadPerClass) continue;  // it is still ready in the next poll, and first in its class
    flow->last_turn = ++turn_;
    if (events & EPOLLOUT) write_flow(*flow, handled);
    if (flow->gone || !flow->connected() || !(events & ~EPOLLOUT)) continue;
    const std::uint64_t before = flow->bytes_received();
    Status status = flow->read(buffers_, handled);
    read += flow->bytes_received() - before;
    if (flow->gone) continue;
    if (!status.ok()) {
      fail_flow(*flow, std::move(status));
    } else if (!flow->queue_empty()) {
      flow->mark_dirty();  // there is something to acknowledge
    }
  }
}

void TcpTransport::on_connected(handshake::Connection& connection) {
  const ports::FlowKey key = connection.key();
  const std::unique_ptr<handshake::Exchange> exchanged = connection.take_exchange();
  const auto* exchange = static_cast<const resume::FlowExchange*>(exchanged.get());
  const resume::Resumer::Next next = resumer_.connected(key, exchange);
  if (next == resume::Resumer::Next::kIgnore) return;
  if (Flow* old = flows_.find(key)) {
    if (next == resume::Resumer::Next::kResume) return resume_flow(*old, connection, *exchange);
    // The peer has lost its end of the old one before we have, or has started again. It has proved itself, so the new
    // one counts.
    end_flow(*old, old->broken(Code::kUnavailable, connection.replaces()));
  }
  begin_flow(connection, exchange == nullptr ? FlowIdentity() : exchange->mine().identity);
}

void TcpTransport::begin_flow(handshake::Connection& connection, FlowIdentity identity) {
  const ports::FlowKey key = connection.key();
  auto flow = std::make_unique<Flow>(key, connection.job(), connection.take_socket(), *classes_.find(key.cls), identity,
                                     connection.make_records());
  serve(*flow);
  flows_.add(std::move(flow));
}

void TcpTransport::serve(Flow& flow) {
  const ClassId cls = flow.key().cls;
  // Law 15: after connect and after accept.
  if (const Result<int> tagged = handshake::apply_tag(flow.fd(), classes_.find(cls)->tag); !tagged.ok())
    spdlog::warn(tagged.status().to_string());
  if (cls == kControlClass) {
    handshake::expect_life(flow.fd(), detection_);
  } else {
    handshake::expect_starvation(flow.fd());
    if (flow.resumes()) handshake::notice_loss(flow.fd(), flow.job().resume_within());
  }
  connector_.watch(flow, flow.fd(), EPOLLIN, true);
}

// ---- lost connections ----

resume::Resumable* TcpTransport::find_flow(const ports::FlowKey& key) {
  return flows_.find(key);
}

void TcpTransport::fail_flow(Flow& flow, Status cause) {
  if (flow.resumable() && connector_.jobs().contains(flow.key().job)) return lose_connection(flow, std::move(cause));
  end_flow(flow, std::move(cause));
}

void TcpTransport::read_rest(Flow& flow, std::size_t& handled) {
  if (!flow.resumes()) return;
  for (std::uint64_t before = ~std::uint64_t{0}; !flow.gone && before != flow.bytes_received();) {
    before = flow.bytes_received();
    if (!flow.read(buffers_, handled).ok()) return;
  }
}

void TcpTransport::lose_connection(resume::Resumable& lost, Status cause) {
  auto& flow = static_cast<Flow&>(lost);
  flow.disconnect();
  flow.unmark_dirty();
  flow.watches_output = false;
  resumer_.lost(flow, std::move(cause), now_);
  resumer_.dial(flow, now_);
}

void TcpTransport::resume_flow(Flow& flow, handshake::Connection& connection, const resume::FlowExchange& exchange) {
  const std::uint64_t again = flow.resume(connection.take_socket(), connection.make_records(), exchange.peer_has());
  if (flow.gone) return;
  serve(flow);
  resumer_.resumed(flow, again, now_);
  flows_.resumed(flow);
  if (!flow.queue_empty()) flow.mark_dirty();
}

// ---- ends ----

void TcpTransport::on_given_up(const ports::FlowKey& key, Status cause) {
  if (Flow* lost = flows_.find(key)) return resumer_.give_up(*lost, cause);
  resumer_.forget(key);
  flows_.end(key, std::move(cause));
}

void TcpTransport::end_flow(resume::Resumable& ended, Status cause) {
  auto& flow = static_cast<Flow&>(ended);
  std::unique_ptr<Flow> owned = flows_.take(flow);
  if (cause.ok()) flow.say_goodbye();
  flow.stop();
  resumer_.forget(flow.key());
  flow.unmark_dirty();
  payloads_dropped_ += flow.payloads_dropped();
  Fd socket = flow.take_socket();
  if (cause.ok()) connector_.linger(std::move(socket), true);
  flows_.end(std::move(owned), std::move(cause));
}

}  // namespace tensorlane::tcp
