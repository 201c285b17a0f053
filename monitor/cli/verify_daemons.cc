#include "monitor/cli/verify_daemons.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxQuestion = 12 << 10;  // bytes of commands; with what is around them, less than 16 KiB

class DaemonHands final : public ProbeHands {
 public:
  explicit DaemonHands(const DaemonHandsOptions& options)
      : options_(options), opened_(options.hosts.size()), failures_(options.hosts.size()) {
    std::random_device random;
    session_ = fmt::format("{:08x}{:08x}", random(), random());
  }
  ~DaemonHands() override {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < size(); ++i)
      if (opened_[i])
        threads.emplace_back([this, i] { (void)ask_host(i, {{"session", session_}, {"end", true}}, seconds(2)); });
    for (std::thread& thread : threads) thread.join();
  }

  std::size_t size() const override { return options_.hosts.size(); }

  std::vector<Result<ProbeLines>> ask(const std::vector<ProbeLines>& commands, Duration patience) override {
    std::vector<Result<ProbeLines>> answers(size(), ProbeLines{});
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < size(); ++i) {
      if (failures_[i]) answers[i] = *failures_[i];
      if (failures_[i] || commands[i].empty()) continue;
      opened_[i] = true;  // also where no answer comes, or none that can be read
      threads.emplace_back([&, i] { answers[i] = ask_all(i, commands[i], patience); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < size(); ++i) {
      if (!answers[i].ok() && !failures_[i]) failures_[i] = answers[i].status();
    }
    return answers;
  }

 private:
  Result<std::string> ask_host(std::size_t i, json args, Duration patience) const {
    DaemonQuestion question{
        .kind = "probe", .args = std::move(args), .hosts = {options_.hosts[i]}, .patience = patience};
    TL_ASSIGN_OR_RETURN(const DaemonAnswers answers, ask_daemons(options_.socket, question));
    if (answers.answers.size() != 1) return Status(Code::kCorrupt, "the daemon has not answered for the host");
    return answers.answers.front().text;
  }

  Result<ProbeLines> ask_all(std::size_t i, const ProbeLines& commands, Duration patience) const {
    ProbeLines lines;
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience.value);
    ProbePieces pieces(commands, kMaxQuestion);
    while (const std::optional<json> piece = pieces.next(std::chrono::steady_clock::now())) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0) return Status(Code::kTimedOut, "no answer in time");
      const json args{{"session", session_},
                      {"commands", json::array({*piece})},
                      {"patience_ms", static_cast<std::uint64_t>(left.count())},
                      {"beside_jobs", options_.beside_jobs}};
      TL_ASSIGN_OR_RETURN(const std::string text, ask_host(i, args, milliseconds(left.count() + 2000)));
      std::istringstream stream(text);
      for (std::string line; std::getline(stream, line);) {
        TL_ASSIGN_OR_RETURN(json parsed, parse_probe_line(line));
        lines.push_back(std::move(parsed));
      }
    }
    return lines;
  }

  const DaemonHandsOptions options_;
  std::string session_;
  std::vector<bool> opened_;  // sessions, which are ended even where something has failed since
  std::vector<std::optional<Status>> failures_;
};

}  // namespace

std::unique_ptr<ProbeHands> ask_by_daemons(const DaemonHandsOptions& options) {
  return std::make_unique<DaemonHands>(options);
}

}  // namespace tensorlane::cli
