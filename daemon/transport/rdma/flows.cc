// Flows that are up: how they begin, their completions, how they lose their queue pairs, and how they end.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/rdma/transport_impl.h"

namespace tensorlane::rdma {

// ---- beginning ----

void RdmaTransport::on_connected(handshake::Connection& connection) {
  const ports::FlowKey key = connection.key();
  const std::unique_ptr<handshake::Exchange> exchanged = connection.take_exchange();
  auto& exchange = static_cast<PairExchange&>(*exchanged);
  const resume::Resumer::Next next = resumer_.connected(key, exchange.flow());
  if (next == resume::Resumer::Next::kIgnore) return;
  if (Flow* old = flows_.find(key)) {
    if (next == resume::Resumer::Next::kResume) return resume_flow(*old, connection, exchange);
    // The peer has lost its end of the old one before we have, or has started again. It has proved itself, so the new
    // one counts.
    end_flow(*old, old->broken(Code::kUnavailable, connection.replaces()), false);
  }
  // Flows of this name that drain have to be gone before the new one is up.
  if (std::ranges::any_of(closing_, [&](const Closing& c) { return c.flow->key() == key; })) finish_closing(true);
  Result<std::shared_ptr<Registrations>> registered = registrations(key.job);
  TL_ASSERT(registered.ok());  // the exchange has made them
  auto flow = std::make_unique<Flow>(
      key, connection.job(), exchange.flow() == nullptr ? resume::FlowIdentity() : exchange.flow()->mine().identity,
      Connected{connection.take_socket(), exchange.take_pairs(), connection.connecting_end()},
      FlowContext{*registered, places(key.job, key.peer), *classes_.find(key.cls), counters_});
  serve(*flow);
  Flow& up = flows_.add(std::move(flow));
  // Frames may have come before the connection's last message did.
  std::size_t delivered = 0;
  if (!up.gone) settle(up, delivered);
}

void RdmaTransport::serve(Flow& flow) {
  if (flow.key().cls == kControlClass) {
    handshake::expect_life(flow.fd(), detection_);
  } else if (flow.resumes()) {
    handshake::notice_loss(flow.fd(), flow.job().resume_within());
  }
  connector_.watch(flow, flow.fd(), EPOLLIN, true);
}

void RdmaTransport::on_given_up(const ports::FlowKey& key, Status cause) {
  if (Flow* lost = flows_.find(key)) return resumer_.give_up(*lost, cause);
  resumer_.forget(key);
  flows_.end(key, std::move(cause));
}

void RdmaTransport::on_moved(const ports::FlowKey& flow) {
  connector_.settle(flow);
}

void RdmaTransport::on_request_refused(const Status& cause) {
  ++counters_.refused;
  connector_.log_refusal(cause);
}

// ---- sending ----

void RdmaTransport::write_dirty() {
  classes_.each([&](ClassShare& share) {
    writing_.swap(share.dirty);
    for (Flow* flow : writing_) {
      flow->dirty = false;
      Status status = flow->write();
      if (!status.ok()) fail_flow(*flow, std::move(status), false);
    }
    writing_.clear();
  });
}

// ---- completions ----

void RdmaTransport::serve_completions(ClassShare& share, std::size_t& handled) {
  for (const ibv_wc& completion : share.completions->poll()) serve_completion(completion, handled);
}

void RdmaTransport::serve_completion(const ibv_wc& completion, std::size_t& handled) {
  const WorkId id = WorkId::unpack(completion.wr_id);
  QueuePair* pair = pairs_.find(id.pair);
  if (pair == nullptr) return;  // of a queue pair that has been destroyed
  Flow* flow = pair->flow;
  const bool good = completion.status == IBV_WC_SUCCESS;
  if (good && id.receive) {
    Status status = pair->arrived(id.position, completion.byte_len);
    if (!status.ok()) pair->failure = {status.code(), "carried a " + status.what(), {}, status.fix()};
  } else if (id.receive) {
    pair->receive_flushed();
  } else if (good && flow != nullptr) {
    flow->sent(*pair, id.position, handled);
  } else {
    while (pair->completed(id.position)) {
    }
  }
  if (!good && pair->failure.ok() && !pair->failed()) pair->failure = explain(completion);
  if (flow != nullptr) settle(*flow, handled);
}

void RdmaTransport::settle(Flow& flow, std::size_t& handled) {
  Status status = flow.deliver(handled);
  if (status.ok()) status = flow.failure();
  if (flow.gone) {
    if (!status.ok()) flow.stop();  // its end has a cause already
    return;
  }
  if (!status.ok()) return fail_flow(flow, std::move(status), false);
  flow.mark_dirty();
}

Status RdmaTransport::explain(const ibv_wc& completion) {
  const std::string port =
      down_since_ ? fmt::format(" ({} has been down for {:.1f} s)", device_->name(), to_seconds(now_ - *down_since_))
                  : "";
  const std::string counters =
      fmt::format("look at `rdma statistic show link {}` and at the switches' drops", device_->link());
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
      ++counters_.retries_exhausted;
      return {Code::kUnavailable,
              "was lost: the peer acknowledged nothing until the retries were exhausted" + port,
              {},
              "look whether that host and its port are up; " + counters};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      ++counters_.receivers_not_ready;
      return {Code::kUnavailable,
              "was lost: the peer had no receive posted" + port,
              {},
              "look at the log of tensorlaned on that host"};
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      ++counters_.access_errors;
      return {Code::kAborted,
              fmt::format("was lost: the peer refused a write ({})", ibv_wc_status_str(completion.status)),
              {},
              "that host has ended the job, or its memory is gone: look at its log"};
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
      ++counters_.access_errors;
      return {Code::kInternal,
              fmt::format("was lost: the device could not use this host's memory ({})",
                          ibv_wc_status_str(completion.status)),
              {},
              "look at the kernel's log"};
    default:
      return {
          Code::kUnavailable, fmt::format("was lost: {}{}", ibv_wc_status_str(completion.status), port), {}, counters};
  }
}

// ---- descriptors ----

void RdmaTransport::look_at_descriptors() {
  for (const epoll_event& event : connector_.ready()) {
    auto* object = static_cast<handshake::Watched*>(event.data.ptr);
    if (object->gone) continue;
    if (object->kind == handshake::Watched::Kind::kFlow) {
      auto& flow = static_cast<Flow&>(*object);
      Status status = flow.connected() ? flow.look_at_connection() : Status();
      if (!status.ok()) fail_flow(flow, std::move(status), true);
    } else if (object == &channel_mark_) {
      serve_channel();
    } else if (object == &device_mark_) {
      serve_device_events();
    } else if (object == &connector_mark_) {
      pair_connector_->serve();
    } else {
      connector_.serve(event);
    }
  }
}

void RdmaTransport::serve_channel() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) static_cast<CompletionQueue*>(context)->disarm();
}

void RdmaTransport::serve_device_events() {
  ibv_async_event event;
  while (ibv_get_async_event(device_->context(), &event) == 0) {
    const auto fatal = [&event](Code code) {
      return Status(code, fmt::format("was lost: {}", ibv_event_type_str(event.event_type)), {},
                    "look at the kernel's log");
    };
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        ++counters_.ports_down;
        down_since_ = now_;
        spdlog::warn("{} went down: flows wait for it to come back", device_->name());
        break;
      case IBV_EVENT_PORT_ACTIVE:
        if (down_since_)
          spdlog::info("{} is up again after {:.1f} s", device_->name(), to_seconds(now_ - *down_since_));
        down_since_.reset();
        break;
      case IBV_EVENT_QP_FATAL:
        fail_flows(fatal(Code::kUnavailable), event.element.qp);
        break;
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        fail_flows(fatal(Code::kAborted), event.element.qp);
        break;
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_DEVICE_FATAL:
        fail_flows(fatal(Code::kInternal), nullptr);
        break;
      default:
        break;  // of no consequence, or a failed completion follows
    }
    ibv_ack_async_event(&event);
  }
}

void RdmaTransport::fail_flows(const Status& cause, const ibv_qp* of) {
  std::vector<Flow*> lost;
  flows_.each([&](Flow& flow) {
    if (of == nullptr || flow.has(of)) lost.push_back(&flow);
  });
  for (Flow* flow : lost) fail_flow(*flow, flow->broken(cause.code(), cause.what(), cause.fix()), false);
}

// ---- lost connections ----

resume::Resumable* RdmaTransport::find_flow(const ports::FlowKey& key) {
  return flows_.find(key);
}

void RdmaTransport::fail_flow(Flow& flow, Status cause, bool deliver) {
  if (flow.resumable(cause) && connector_.jobs().contains(flow.key().job)) {
    if (!flow.connected()) return;  // it drains, and every completion says so
    // Queue pairs may hear of the end of the peer's before the goodbye is read.
    Status last_word = flow.look_at_connection();
    if (last_word.ok() || flow.resumable(last_word)) return lose_connection(flow, std::move(cause));
    cause = std::move(last_word);
    deliver = true;
  }
  end_flow(flow, std::move(cause), deliver);
}

void RdmaTransport::lose_connection(resume::Resumable& lost, Status cause) {
  auto& flow = static_cast<Flow&>(lost);
  flow.disconnect();
  flow.unmark_dirty();
  draining_.push_back(&flow);
  resumer_.lost(flow, std::move(cause), now_);
}

void RdmaTransport::finish_draining() {
  for (std::size_t i = 0; i < draining_.size();) {
    Flow& flow = *draining_[i];
    if (!flow.drained()) {
      ++i;
      continue;
    }
    draining_.erase(draining_.begin() + static_cast<std::ptrdiff_t>(i));
    flow.drop_pairs();
    resumer_.dial(flow, now_);
  }
}

void RdmaTransport::resume_flow(Flow& flow, handshake::Connection& connection, PairExchange& exchange) {
  const std::uint64_t again = flow.resume(
      {connection.take_socket(), exchange.take_pairs(), connection.connecting_end()}, exchange.flow()->peer_has());
  if (flow.gone) return;
  serve(flow);
  resumer_.resumed(flow, again, now_);
  flows_.resumed(flow);
  std::size_t delivered = 0;
  settle(flow, delivered);
}

// ---- ends ----

void RdmaTransport::end_flow(resume::Resumable& flow, Status cause) {
  end_flow(static_cast<Flow&>(flow), std::move(cause), false);
}

void RdmaTransport::end_flow(Flow& flow, Status cause, bool deliver) {
  std::unique_ptr<Flow> owned = flows_.take(flow);
  if (cause.ok()) flow.say_goodbye();
  resumer_.forget(flow.key());
  std::erase(draining_, &flow);
  flow.begin_end();
  if (!deliver) flow.stop();
  flow.unmark_dirty();
  handshake::Fd socket = flow.take_socket();
  if (cause.ok()) connector_.linger(std::move(socket), true);
  closing_.push_back({std::move(owned), std::move(cause), now_ + kDrainTimeout});
}

void RdmaTransport::finish_closing(bool all) {
  std::erase_if(closing_, [&](Closing& closing) {
    if (!all && !closing.flow->drained() && now_ < closing.deadline) return false;
    // Law 7: the queue pairs are gone before anybody hears of the end.
    closing.flow->stop();
    closing.flow->drop_pairs();
    flows_.end(std::move(closing.flow), std::move(closing.cause));
    return true;
  });
}

}  // namespace tensorlane::rdma
