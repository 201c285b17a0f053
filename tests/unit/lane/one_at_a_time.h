// A transport whose flows take one operation between two polls.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "daemon/ports/transport.h"

namespace tensorlane::lane {

// Between a host and its transport: flows take one operation between two polls.
class OneAtATime final : public ports::FlowOwner {
 public:
  explicit OneAtATime(ports::FlowOwner& owner) : owner_(owner) {}
  void polls() {
    for (auto& [key, line] : lines_) line.taken = false;
  }
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override {
    lines_.erase(key);
    return owner_.on_flow_up(key, lines_.try_emplace(key, flow).first->second);
  }
  void on_flow_resumed(const ports::FlowKey& key, const ports::Flow&) override {
    owner_.on_flow_resumed(key, lines_.at(key));
  }
  void on_flow_down(const ports::FlowKey& key, const Status& cause) override { owner_.on_flow_down(key, cause); }

 private:
  struct Line final : ports::Flow {
    explicit Line(ports::Flow& r) : real(r) {}
    bool writable() const override { return !taken && real.writable(); }
    void send(const ports::Outgoing& operation) override {
      EXPECT_TRUE(writable());
      taken = true;
      real.send(operation);
    }
    ports::FlowStats stats() const override { return real.stats(); }
    ports::Flow& real;
    bool taken = false;
  };
  ports::FlowOwner& owner_;
  std::map<ports::FlowKey, Line> lines_;
};

// A transport with such flows.
class OneAtATimeTransport final : public ports::Transport {
 public:
  OneAtATimeTransport(std::unique_ptr<OneAtATime> owner, std::unique_ptr<ports::Transport> real)
      : owner_(std::move(owner)), real_(std::move(real)) {}
  void add_job(const ports::JobCredentials& credentials) override { real_->add_job(credentials); }
  void remove_job(JobId job) override { real_->remove_job(job); }
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t port, Time deadline) override {
    return real_->connect(flow, address, port, deadline);
  }
  void close(const ports::FlowKey& flow) override { real_->close(flow); }
  Bytes in_flight(ClassId cls) override { return real_->in_flight(cls); }
  std::size_t poll(Time now) override {
    owner_->polls();
    return real_->poll(now);
  }
  int wake_fd() const override { return real_->wake_fd(); }

 private:
  std::unique_ptr<OneAtATime> owner_;
  std::unique_ptr<ports::Transport> real_;
};

}  // namespace tensorlane::lane
