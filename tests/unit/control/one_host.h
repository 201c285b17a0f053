// A registrar that is alone: the leader of a job of one host.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "daemon/control/registrar.h"

namespace tensorlane::control {

inline constexpr Duration kWarning = seconds(10), kError = seconds(100);

inline protocol::TensorBody barrier(const std::string& name) {
  protocol::TensorBody tensor;
  std::memcpy(tensor.name, name.data(), name.size());
  tensor.operation = Operation::kBarrier;
  return tensor;
}

// Carries out what the registrar asks for. What it says waits until it is delivered.
class OneHost final : public RegistrarOutput {
 public:
  explicit OneHost(std::uint32_t ranks) : ranks_(ranks) {
    RegistrarConfig config{.job = "j", .self = "h0", .leader = "h0", .stall_warning = kWarning, .stall_error = kError};
    config.roster.hosts.push_back({"h0", {}, {"127.0.0.1"}});
    for (std::uint32_t rank = 0; rank < ranks; ++rank) config.roster.hosts[0].ranks.push_back(rank);
    config.roster.world_size = ranks;
    config.planner = [](const protocol::TensorBody&, const protocol::SharedWorld&) { return protocol::PlanTensor(); };
    registrar_.emplace(std::move(config), *this);
  }

  // Each by all ranks, as request 1: what rank 0 is told.
  Status add(const std::string& group, std::size_t count) {
    std::vector<protocol::TensorBody> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(barrier(fmt::format("{}.{}", group, i)));
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      registrar_->register_group(rank, ports::SessionId(rank), 1, group, tensors);
    return settle();
  }
  Status remove(const std::string& group) {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) ask(rank, group);
    return settle();
  }

  // A rank unregisters a group.
  void ask(std::uint32_t rank, const std::string& group, std::uint32_t request = 1, Duration patience = {}) {
    registrar_->unregister_group(rank, ports::SessionId(rank), request, group, 0, patience);
  }
  void deliver(Time now = Time(1)) {
    for (; !said_.empty(); said_.pop_front()) {
      const auto [type, body] = said_.front();
      EXPECT_TRUE(registrar_->handle("h0", type, body, now)) << static_cast<int>(type);
      if (in_force_) registrar_->plan_in_force(*std::exchange(in_force_, std::nullopt));
    }
  }
  // What the rank has been told since somebody asked last, if anything.
  std::optional<Status> told(std::uint32_t rank, std::uint32_t request = 1) {
    const auto answer = answers_.extract({rank, request});
    return answer.empty() ? std::nullopt : std::optional(answer.mapped());
  }
  const protocol::Plan& plan() const { return registrar_->plan(); }
  const Registrar::Totals& totals() const { return registrar_->totals(); }
  Registrar& operator*() { return *registrar_; }
  Status failure;
  std::vector<std::string> late;  // "rank: what"
  std::vector<std::string> notes;
  bool lane_takes_plans = true;  // else none comes in force

 private:
  Status settle() {
    deliver();
    std::optional<Status> answer;
    for (std::uint32_t rank = ranks_; rank-- > 0;) {
      answer = told(rank);
      EXPECT_TRUE(answer.has_value()) << "no answer to rank " << rank;
    }
    return answer.value_or(Status());
  }
  void to_leader(MessageType type, nlohmann::json body) override { said_.emplace_back(type, std::move(body)); }
  void to_all_hosts(MessageType type, nlohmann::json body) override { said_.emplace_back(type, std::move(body)); }
  void apply_plan(protocol::Plan added) override {
    if (lane_takes_plans) in_force_ = added.version;
  }
  void vacate(std::uint32_t version, protocol::TensorRange) override { in_force_ = version; }
  void bind(std::uint32_t, TensorId, ports::BufferPlace) override {}
  void answer(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) override {
    answers_[{session.value, request}] = ids.status();
  }
  void answer_unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) override {
    answers_[{session.value, request}] = tensors.status();
  }
  void report_late(std::uint32_t rank, const std::string& what, Duration) override {
    late.push_back(fmt::format("{}: {}", rank, what));
  }
  void fail_job(Status cause) override { failure = std::move(cause); }
  void note(const std::string& line) override { notes.push_back(line); }

  const std::uint32_t ranks_;
  std::optional<Registrar> registrar_;
  std::deque<std::pair<MessageType, nlohmann::json>> said_;
  std::optional<std::uint32_t> in_force_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Status> answers_;  // by session and request
};

}  // namespace tensorlane::control
