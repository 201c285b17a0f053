// The flows of a transport that are up, and the ends that their owner has not heard of: what all transports that
// connect by a handshake keep alike.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/assert.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"

namespace tensorlane::handshake {

// `F` is an UpFlow. One thread.
template <typename F>
class FlowTable {
 public:
  // Both outlive the table.
  FlowTable(ports::FlowOwner& owner, Connector& connector) : owner_(owner), connector_(connector) {}

  // Null: it is not up.
  F* find(const ports::FlowKey& key) const {
    const auto found = flows_.find(key);
    return found == flows_.end() ? nullptr : found->second.get();
  }
  // Calls `visit` for each, which neither adds nor takes any.
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& [key, flow] : flows_) visit(*flow);
  }

  // A flow is up, and none of its name is there: the owner hears of all ends, then of it, and may close it at once.
  F& add(std::unique_ptr<F> flow) {
    tell_ends();
    F& up = *flow;
    const bool added = flows_.emplace(up.key(), std::move(flow)).second;
    TL_ASSERT(added);
    ++uncounted_;
    up.deliver_to(owner_.on_flow_up(up.key(), up));
    return up;
  }
  // A flow ends: nobody finds it any more, and end() follows when nothing of it is read or written any more.
  std::unique_ptr<F> take(F& flow) {
    const auto found = flows_.find(flow.key());
    TL_ASSERT(found != flows_.end() && found->second.get() == &flow);
    flow.gone = true;
    connector_.cancel(flow.key());
    std::unique_ptr<F> taken = std::move(found->second);
    flows_.erase(found);
    return taken;
  }
  // on_flow_down() follows from the next report().
  void end(std::unique_ptr<F> flow, Status cause) {
    const ports::FlowKey key = flow->key();
    ended_.push_back({key, std::move(cause), std::move(flow)});
    connector_.waker().kick();
  }
  // The same of a flow that has not come up.
  void end(const ports::FlowKey& key, Status cause) {
    ended_.push_back({key, std::move(cause), nullptr});
    connector_.waker().kick();
  }

  // ports::Transport::remove_job(), where close() ends a flow that is up.
  template <typename Close>
  void remove_job(JobId job, Close close) {
    std::vector<F*> flows;
    for (const auto& [key, flow] : flows_) {
      if (key.job == job) flows.push_back(flow.get());
    }
    for (F* flow : flows) close(*flow);
    for (const ports::FlowKey& key : connector_.remove_job(job)) end(key, {});
  }

  // A flow goes on over a new connection, and all of it is set up: the owner hears of it, and report() counts that,
  // too.
  void resumed(const F& flow) {
    ++uncounted_;
    owner_.on_flow_resumed(flow.key(), flow);
  }
  // None is up.
  bool empty() const { return flows_.empty(); }
  std::size_t size() const { return flows_.size(); }
  // Nothing is left to report.
  bool quiet() const { return ended_.empty(); }
  // Tells the owner of what has ended. Returns how many flows have come up or ended since the last call.
  std::size_t report() {
    tell_ends();
    return std::exchange(uncounted_, 0);
  }

 private:
  void tell_ends() {
    while (!ended_.empty()) {
      for (Ended& ended : std::exchange(ended_, {})) {
        ++uncounted_;
        owner_.on_flow_down(ended.key, ended.cause);
        if (ended.flow) connector_.delete_later(std::move(ended.flow));
      }
    }
  }

  struct Ended {
    ports::FlowKey key;
    Status cause;
    std::unique_ptr<F> flow;
  };
  ports::FlowOwner& owner_;
  Connector& connector_;
  std::map<ports::FlowKey, std::unique_ptr<F>> flows_;
  std::vector<Ended> ended_;
  std::size_t uncounted_ = 0;  // flows that have come up or ended since report() counted
};

// What a transport has of each of its classes, in the order of service.
template <typename State>
class ByClass {
 public:
  State& add(ClassId cls, std::unique_ptr<State> state) {
    std::unique_ptr<State>& place = states_[service_order(cls)];
    place = std::move(state);
    return *place;
  }
  // Null: the transport has no such class.
  State* find(ClassId cls) const {
    const std::size_t position = service_order(cls);
    return position < states_.size() ? states_[position].get() : nullptr;
  }
  // Calls `visit` for each, most urgent first.
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& state : states_) {
      if (state) visit(*state);
    }
  }

 private:
  std::array<std::unique_ptr<State>, kMaxClasses> states_;
};

}  // namespace tensorlane::handshake
