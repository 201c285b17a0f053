#include "monitor/cli/verify_daemons.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxQuestion = 12 << 10;  // bytes of commands; with what is around them, less than 16 KiB

// While it is there, a signal that ends the program first has `end` called, by a thread of its own. Made before other
// threads, which thus leave such signals to that one.
class BeforeTheEnd {
 public:
  explicit BeforeTheEnd(std::function<void()> end) : end_(std::move(end)) {
    sigemptyset(&awaited_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&awaited_, signal);
    pthread_sigmask(SIG_BLOCK, &awaited_, &before_);
    thread_ = std::thread([this] { run(); });
  }
  ~BeforeTheEnd() {
    over_ = true;
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BeforeTheEnd(const BeforeTheEnd&) = delete;
  BeforeTheEnd& operator=(const BeforeTheEnd&) = delete;

 private:
  void run() {
    constexpr timespec kTurn{0, 50'000'000};
    while (!over_) {
      const int came = sigtimedwait(&awaited_, nullptr, &kTurn);
      if (came <= 0) continue;
      end_();
      pthread_sigmask(SIG_UNBLOCK, &awaited_, nullptr);
      ::raise(came);
    }
  }

  const std::function<void()> end_;
  sigset_t awaited_{}, before_{};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class DaemonHands final : public ProbeHands {
 public:
  explicit DaemonHands(const DaemonHandsOptions& options)
      : options_(options), opened_(options.hosts.size()), failures_(options.hosts.size()) {
    std::random_device random;
    session_ = fmt::format("{:08x}{:08x}", random(), random());
  }
  ~DaemonHands() override { end_sessions(); }

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
  // Any thread.
  void end_sessions() const {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < size(); ++i)
      if (opened_[i])
        threads.emplace_back([this, i] { (void)ask_host(i, {{"session", session_}, {"end", true}}, seconds(2)); });
    for (std::thread& thread : threads) thread.join();
  }

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
  std::vector<std::atomic<bool>> opened_;  // sessions, which are ended even where something has failed since
  std::vector<std::optional<Status>> failures_;
  const BeforeTheEnd on_signals_{[this] { end_sessions(); }};  // the last one: it is over first
};

}  // namespace

std::unique_ptr<ProbeHands> ask_by_daemons(const DaemonHandsOptions& options) {
  return std::make_unique<DaemonHands>(options);
}

}  // namespace tensorlane::cli
