// A session server with fakes of control and of a lane behind it, in this process.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/protocol/parts.h"
#include "daemon/memory/arena.h"
#include "daemon/ports/session.h"
#include "daemon/session/server.h"
#include "daemon/session/unique_fd.h"

namespace tensorlane::test {

// How the fake lane treats what is submitted.
enum class Mode { kRun, kHold, kReverse };

// Joins a job when all of its ranks are here, registers a group when all ranks have registered it, and carries out
// operations as soon as all ranks have submitted them: an allreduce gives TWICE the sum (so that doing nothing is
// seen), float32 only; broadcast and allgather are what they are. With kHold operations wait until the mode changes;
// with kReverse they also complete last come, first served, when flush() is called.
class FakeDaemon final : public ports::JobControl {
 public:
  explicit FakeDaemon(session::SessionConfig config = {}, memory::MemoryLimits limits = {mib(2048), mib(64)},
                      Duration detection = milliseconds(800));
  ~FakeDaemon() override;

  // An array call of this name is never registered; a pull of kUnlike neither.
  static constexpr const char* kRefused = "refused";
  static constexpr const char* kUnlike = "pull.unlike";
  // The first question to unregister such a group stays without an answer; of kUnheard, which goes all the same.
  static constexpr const char* kKept = "kept";
  static constexpr const char* kUnheard = "unheard";
  // Such a group goes at once, which is said when say_what_has_gone() is called.
  static constexpr const char* kUnsaid = "unsaid";
  bool wait_gone();  // false after 10 s
  void say_what_has_gone();

  const std::string& socket() const { return config_.socket_path; }
  session::SessionServer& server() { return server_; }
  memory::ArenaPool& pool() { return pool_; }

  void set_mode(Mode mode);
  // From when `n` operations are done: kHold.
  void hold_after(std::uint64_t n) { hold_after_ = n; }
  void flush();  // kReverse: completes what has come
  // Fails a job as the lane and control do: the operations that are held complete as aborted, the rings fail, control
  // says so.
  void abort_job(const std::string& job, const Status& cause);

  // Fails a job as a daemon does that cuts its clients off while it still works on their buffers, with these bytes
  // everywhere in them: the rings fail, nothing completes.
  void fail_rings(const std::string& job, const Status& cause);
  void write_to_buffers(const std::string& job, unsigned char byte);

  // What control has been told about sessions that went; waits up to 10 s for the n-th.
  std::vector<Status> leaves(std::size_t at_least);
  // Of the jobs that come together from now on: hosts, as far as their clients hear of it. Ranks are on h0, h1... in
  // equal numbers, as far as that goes.
  void set_hosts(std::uint32_t hosts) { hosts_ = hosts; }
  // What this rank has said of parts of its operation on this tensor of the job, since its last one was done: a mask.
  std::uint64_t parts_of(const std::string& job, const std::string& tensor, std::uint32_t rank);
  // These parts of the operation's result become `value`, in the buffers of all ranks, and they are told so.
  void put_in_place(const std::string& job, const std::string& tensor, const protocol::PartRun& run, float value);
  // What the client of this rank says of itself.
  ports::ClientTimes times_of(const std::string& job, std::uint32_t rank);
  // Submissions are not taken while it lives.
  std::unique_lock<std::mutex> stop_taking() { return std::unique_lock(mutex_); }
  // Waits until the job has so many groups; false after 10 s.
  bool wait_groups(const std::string& job, std::size_t n);
  std::uint64_t boosts() const { return boosts_.load(); }
  std::uint64_t operations() const { return operations_.load(); }
  // Waits until `n` operations have come in (of all ranks); false after 10 s.
  bool wait_submitted(std::uint64_t n);

  // ports::JobControl
  void join(ports::JoinRequest request) override;
  void register_group(ports::SessionId session, std::uint32_t request, std::string group,
                      std::vector<protocol::TensorBody> tensors, std::vector<std::uint32_t> ranks) override;
  void overdue(ports::SessionId session, std::uint32_t request) override;
  // Answers when all ranks have.
  void unregister_group(ports::SessionId session, std::uint32_t request, std::string group, std::uint64_t operations,
                        Duration patience) override;
  void leave(ports::SessionId session, Status why) override;
  void status(ports::SessionId session, std::uint32_t uid, std::uint32_t request) override;
  void ask(ports::SessionId session, std::uint32_t uid, std::uint32_t request, std::string question) override;
  // What status() answers.
  void set_status(std::string json) { status_ = std::move(json); }

 private:
  struct Member {
    ports::SessionId session;
    std::uint32_t rank = 0;
    std::shared_ptr<ports::ClientSession> client;
  };
  struct Tensor {
    protocol::TensorBody body;
    std::uint32_t ranks = 1;                                // how many have registered it
    std::map<std::uint32_t, std::span<std::byte>> buffers;  // by rank
    std::map<std::uint32_t, std::uint64_t> submitted;       // sequence by rank
    std::map<std::uint32_t, std::uint64_t> parts;           // that exist of the next operation, by rank
    std::uint64_t done = 0;
  };
  struct Group {
    struct Asked {
      ports::SessionId session;
      std::uint32_t request;
      std::vector<protocol::TensorBody> tensors;
    };
    std::map<std::uint32_t, Asked> by_rank;
    std::map<std::uint32_t, std::pair<ports::SessionId, std::uint32_t>> leaving;  // by rank: session and request
    std::uint32_t ranks = 1, tensors = 0;                                         // how many there are of them
    bool ignored = false;  // the first question about a group of kKept
  };
  struct Job {
    std::string name;
    std::uint32_t world_size = 1;
    std::vector<Member> members;
    std::map<std::string, Group> groups;
    std::vector<Tensor> tensors;
  };

  Job* job_of(ports::SessionId session, Member** member = nullptr);
  void finish_group(Job& job, Group& group);
  bool serve(Job& job);                  // takes submissions; whether there were any
  void run(Job& job, std::uint32_t id);  // one operation of which all ranks have come
  void lane();
  Tensor& tensor_locked(const std::string& job, const std::string& tensor);

  std::string status_ = R"({"fake": true})";
  session::SessionConfig config_;
  const Duration detection_;
  memory::ArenaPool pool_;
  session::SessionServer server_;
  std::atomic<std::uint64_t> boosts_{0}, operations_{0}, submitted_{0}, hold_after_{~std::uint64_t{0}};

  std::mutex mutex_;
  std::condition_variable changed_;
  Mode mode_ = Mode::kRun;
  std::map<std::string, Job> jobs_;
  std::atomic<std::uint32_t> hosts_{1};
  std::vector<std::pair<std::string, std::uint32_t>> held_;  // job, tensor
  std::vector<Status> leaves_;
  std::vector<std::function<void()>> unsaid_;
  bool stop_ = false;
  const session::UniqueFd wake_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::thread lane_;
};

// A path for a socket that nobody else uses.
std::string fresh_socket();

}  // namespace tensorlane::test
