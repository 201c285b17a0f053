#include "fake_daemon.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "common/base/assert.h"
#include "common/protocol/exchange.h"
#include "common/protocol/rank_block.h"

namespace tensorlane::test {
namespace {

session::SessionConfig with_socket(session::SessionConfig config) {
  if (config.socket_path == session::SessionConfig().socket_path) config.socket_path = fresh_socket();
  return config;
}

}  // namespace

std::string fresh_socket() {
  static std::atomic<int> number{0};
  return "/tmp/tensorlane-test-" + std::to_string(getpid()) + "-" + std::to_string(number++) + ".sock";
}

FakeDaemon::FakeDaemon(session::SessionConfig config, memory::MemoryLimits limits, Duration detection)
    : config_(with_socket(std::move(config))), detection_(detection), pool_(limits), server_(config_, pool_) {
  const Status started = server_.start(*this);
  if (!started.ok()) fprintf(stderr, "%s\n", started.error_line().c_str());
  TL_ASSERT(started.ok());
  lane_ = std::thread([this] { lane(); });
}

FakeDaemon::~FakeDaemon() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  eventfd_write(wake_.get(), 1);
  lane_.join();
  server_.stop();
}

void FakeDaemon::set_mode(Mode mode) {
  {
    std::lock_guard lock(mutex_);
    mode_ = mode;
    hold_after_ = ~std::uint64_t{0};
  }
  flush();
}

void FakeDaemon::flush() {
  std::lock_guard lock(mutex_);
  std::reverse(held_.begin(), held_.end());
  for (const auto& [job, tensor] : std::exchange(held_, {})) {
    const auto it = jobs_.find(job);
    if (it != jobs_.end()) run(it->second, tensor);
  }
}

void FakeDaemon::abort_job(const std::string& name, const Status& cause) {
  std::lock_guard lock(mutex_);
  Job& job = jobs_.at(name);
  std::erase_if(held_, [&](const auto& h) { return h.first == name; });
  for (Member& member : job.members) {
    for (std::uint32_t id = 0; id < job.tensors.size(); ++id) {
      const Tensor& t = job.tensors[id];
      const auto sequence = t.submitted.find(member.rank);
      if (sequence != t.submitted.end() && sequence->second > t.done)
        member.client->complete({id, Code::kAborted, sequence->second});
    }
    member.client->fail(cause);
    server_.job_failed(member.session, cause);
  }
}

void FakeDaemon::fail_rings(const std::string& name, const Status& cause) {
  std::lock_guard lock(mutex_);
  std::erase_if(held_, [&](const auto& h) { return h.first == name; });
  for (Member& member : jobs_.at(name).members) {
    member.client->fail(cause);
    server_.job_failed(member.session, cause);
  }
}

void FakeDaemon::write_to_buffers(const std::string& name, unsigned char byte) {
  std::lock_guard lock(mutex_);
  for (Tensor& tensor : jobs_.at(name).tensors) {
    for (auto& [rank, buffer] : tensor.buffers) std::memset(buffer.data(), byte, buffer.size());
  }
}

std::vector<Status> FakeDaemon::leaves(std::size_t at_least) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(10), [&] { return leaves_.size() >= at_least; });
  return leaves_;
}

bool FakeDaemon::wait_submitted(std::uint64_t n) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return submitted_.load() >= n; });
}

FakeDaemon::Job* FakeDaemon::job_of(ports::SessionId session, Member** member) {
  for (auto& [name, job] : jobs_) {
    for (Member& m : job.members) {
      if (m.session != session) continue;
      if (member != nullptr) *member = &m;
      return &job;
    }
  }
  return nullptr;
}

void FakeDaemon::join(ports::JoinRequest request) {
  std::lock_guard lock(mutex_);
  if (request.job == "refused") {
    server_.joined(request.session, Status(Code::kPermissionDenied, "the secret is wrong", "job 'refused'",
                                           "set TENSORLANE_JOB_SECRET"));
    return;
  }
  Job& job = jobs_[request.job];
  job.name = request.job;
  job.world_size = request.world_size;
  job.members.push_back({request.session, request.rank, std::move(request.client)});
  if (job.members.size() < job.world_size) return;
  for (const Member& member : job.members) {
    const std::string host = "h" + std::to_string(member.rank * hosts_ / job.world_size);
    server_.joined(member.session, ports::JoinInfo{Epoch(1), hosts_.load(), HostIndex(0), detection_, host});
  }
  eventfd_write(wake_.get(), 1);
}

void FakeDaemon::register_group(ports::SessionId session, std::uint32_t request, std::string name,
                                std::vector<protocol::TensorBody> tensors, std::vector<std::uint32_t> ranks) {
  std::lock_guard lock(mutex_);
  Member* member = nullptr;
  Job* job = job_of(session, &member);
  TL_ASSERT(job != nullptr);
  if (name.ends_with(kRefused) || name == kUnlike) {
    server_.registered(session, request, Status(Code::kMismatch, "ranks disagree", "tensor", "register alike"));
    return;
  }
  Group& group = job->groups[name];
  const std::uint32_t rank = member->rank;
  group.by_rank[rank] = {session, request, std::move(tensors)};
  group.ranks = ranks.empty() ? job->world_size : static_cast<std::uint32_t>(ranks.size());
  if (group.by_rank.size() == group.ranks) finish_group(*job, group);
}

// Control would fail the job.
void FakeDaemon::overdue(ports::SessionId session, std::uint32_t request) {
  server_.registered(session, request, Status(Code::kTimedOut, "rank 1 has not registered", "", ""));
}

void FakeDaemon::finish_group(Job& job, Group& group) {
  const std::vector<protocol::TensorBody>& first = group.by_rank.begin()->second.tensors;
  for (const auto& [rank, asked] : group.by_rank) {
    bool same = asked.tensors.size() == first.size();
    for (std::size_t i = 0; same && i < first.size(); ++i) same = asked.tensors[i].elements == first[i].elements;
    if (same) continue;
    for (const auto& [r, a] : group.by_rank) {
      server_.registered(
          a.session, a.request,
          Status(Code::kMismatch, "ranks disagree", "tensor of rank " + std::to_string(rank), "register alike"));
    }
    group.by_rank.clear();
    return;
  }
  std::vector<TensorId> ids;
  for (std::size_t i = 0; i < first.size(); ++i) {
    ids.push_back(TensorId(static_cast<std::uint32_t>(job.tensors.size())));
    Tensor& t = job.tensors.emplace_back();
    t.body = first[i];
    t.ranks = group.ranks;
    for (const auto& [rank, asked] : group.by_rank) {
      const protocol::TensorBody& body = asked.tensors[i];
      Member* member = nullptr;
      job_of(asked.session, &member);
      t.buffers[rank] = member->client->map({body.segment, body.offset, body.elements * dtype_size(body.dtype)});
    }
  }
  group.tensors = static_cast<std::uint32_t>(ids.size());
  for (const auto& [rank, asked] : group.by_rank) server_.registered(asked.session, asked.request, ids);
}

void FakeDaemon::unregister_group(ports::SessionId session, std::uint32_t request, std::string name, std::uint64_t,
                                  Duration) {
  std::lock_guard lock(mutex_);
  Member* member = nullptr;
  Job* job = job_of(session, &member);
  TL_ASSERT(job != nullptr);
  const auto found = job->groups.find(name);
  if (found == job->groups.end())
    return server_.unregistered(session, request, Status(Code::kNotFound, "no such group", name, "register it"));
  Group& group = found->second;
  if (name.ends_with(kKept) && !std::exchange(group.ignored, true)) return;
  group.leaving[member->rank] = {session, request};
  if (group.leaving.size() < group.ranks) return;
  for (const auto& [rank, asked] : group.leaving) {
    const auto say = [this, asked = asked, tensors = group.tensors] {
      server_.unregistered(asked.first, asked.second, tensors);
    };
    if (name.ends_with(kUnsaid)) {
      unsaid_.emplace_back(say);
    } else if (!name.ends_with(kUnheard)) {
      say();
    }
  }
  job->groups.erase(found);
  changed_.notify_all();
}

bool FakeDaemon::wait_gone() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !unsaid_.empty(); });
}

bool FakeDaemon::wait_groups(const std::string& job, std::size_t n) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return jobs_.at(job).groups.size() == n; });
}

void FakeDaemon::say_what_has_gone() {
  std::lock_guard lock(mutex_);
  for (const auto& say : std::exchange(unsaid_, {})) say();
}

void FakeDaemon::leave(ports::SessionId session, Status why) {
  std::lock_guard lock(mutex_);
  Job* job = job_of(session);
  if (job != nullptr) {
    std::erase_if(job->members, [&](const Member& m) { return m.session == session; });
    if (job->members.empty()) jobs_.erase(job->name);
  }
  if (why.ok()) server_.left(session);
  eventfd_write(wake_.get(), 1);  // the lane lets go of the client
  leaves_.push_back(std::move(why));
  changed_.notify_all();
}

void FakeDaemon::status(ports::SessionId session, std::uint32_t, std::uint32_t request) {
  server_.status(session, request, status_);
}

void FakeDaemon::ask(ports::SessionId session, std::uint32_t uid, std::uint32_t request, std::string question) {
  server_.status(session, request, std::to_string(uid) + " asks " + question);
}

void FakeDaemon::run(Job& job, std::uint32_t id) {
  Tensor& t = job.tensors[id];
  using Op = Operation;
  const auto floats = [&](std::uint32_t rank) { return reinterpret_cast<float*>(t.buffers[rank].data()); };
  const std::size_t n = t.body.elements;
  if (t.body.operation == Op::kAllreduce) {
    std::vector<float> sum(n);
    for (auto& [rank, bytes] : t.buffers) {
      for (std::size_t i = 0; i < n; ++i) sum[i] += 2 * floats(rank)[i];
    }
    for (auto& [rank, bytes] : t.buffers) std::memcpy(bytes.data(), sum.data(), bytes.size());
  } else if (t.body.operation == Op::kReduceScatter) {
    std::vector<float> sum(n);
    for (auto& [rank, bytes] : t.buffers) {
      for (std::size_t i = 0; i < n; ++i) sum[i] += floats(rank)[i];
    }
    for (auto& [rank, bytes] : t.buffers) {
      const auto block = protocol::rank_block(n, t.body.row, job.world_size, rank);
      for (std::size_t i = 0; i < n; ++i)
        floats(rank)[i] = i - block.offset < block.elements ? sum[i] : -1;  // what is not the rank's means nothing
    }
  } else if (t.body.operation == Op::kBroadcast) {
    for (auto& [rank, bytes] : t.buffers) {
      if (rank != t.body.root) std::memcpy(bytes.data(), t.buffers[t.body.root].data(), bytes.size());
    }
  } else if (t.body.operation == Op::kReduce) {
    std::vector<float> sum(n);
    for (auto& [rank, bytes] : t.buffers) {
      for (std::size_t i = 0; i < n; ++i) sum[i] += floats(rank)[i];
    }
    for (auto& [rank, bytes] : t.buffers) {
      for (std::size_t i = 0; i < n; ++i) floats(rank)[i] = rank == t.body.root ? sum[i] : -1;
    }
  } else if (exchanges(t.body.operation)) {
    const protocol::Exchange exchange{t.body.operation, n, job.world_size, t.body.root};
    for (auto& [from, bytes] : t.buffers) {
      for (auto& [to, other] : t.buffers) {
        const float* const block = floats(from) + exchange.sent_from(from, to);
        if (exchange.sends(from, to)) std::copy_n(block, exchange.block(), floats(to) + exchange.lands_at(from, to));
      }
    }
  } else if (t.body.operation == Op::kAllgather) {
    std::size_t at = 0;
    for (auto& [from, bytes] : t.buffers) {
      const std::size_t share = bytes.size() / t.ranks;
      for (auto& [to, other] : t.buffers) {
        if (from != to) std::memcpy(other.data() + at, bytes.data() + at, share);
      }
      at += share;
    }
  }
  ++t.done;
  t.parts.clear();
  if (operations_.fetch_add(1) + 1 >= hold_after_) mode_ = Mode::kHold;
  for (Member& member : job.members) {
    if (t.submitted.contains(member.rank)) member.client->complete({id, Code::kOk, t.done});
  }
}

FakeDaemon::Tensor& FakeDaemon::tensor_locked(const std::string& job, const std::string& tensor) {
  const auto found =
      std::ranges::find(jobs_.at(job).tensors, tensor, [](const Tensor& t) { return std::string(t.body.name); });
  TL_ASSERT(found != jobs_.at(job).tensors.end());
  return *found;
}

std::uint64_t FakeDaemon::parts_of(const std::string& job, const std::string& tensor, std::uint32_t rank) {
  std::lock_guard lock(mutex_);
  return tensor_locked(job, tensor).parts[rank];
}

ports::ClientTimes FakeDaemon::times_of(const std::string& job, std::uint32_t rank) {
  std::lock_guard lock(mutex_);
  const std::vector<Member>& members = jobs_.at(job).members;
  return std::ranges::find(members, rank, &Member::rank)->client->times();
}

void FakeDaemon::put_in_place(const std::string& job, const std::string& tensor, const protocol::PartRun& run,
                              float value) {
  std::lock_guard lock(mutex_);
  Tensor& t = tensor_locked(job, tensor);
  const auto id = static_cast<std::uint32_t>(&t - jobs_.at(job).tensors.data());
  for (const auto& [rank, bytes] : t.buffers) {
    const std::uint64_t part = protocol::part_bytes(bytes.size()), from = run.first * part;
    const std::uint64_t to = std::min<std::uint64_t>(from + run.count * part, bytes.size());
    std::fill(reinterpret_cast<float*>(bytes.data() + from), reinterpret_cast<float*>(bytes.data() + to), value);
  }
  for (Member& member : jobs_.at(job).members)
    member.client->parts_in_place({id, Code::kInProgress, protocol::with_parts(t.done + 1, run)});
}

bool FakeDaemon::serve(Job& job) {
  std::array<protocol::SubmissionEntry, 64> entries;
  bool any = false;
  for (Member& member : job.members) {
    const std::size_t count = member.client->take(entries);
    any = any || count > 0;
    for (std::size_t i = 0; i < count; ++i) {
      const protocol::SubmissionEntry& e = entries[i];
      if (e.flags == protocol::kFlagBoost) {
        boosts_.fetch_add(1);
        continue;
      }
      if (e.tensor >= job.tensors.size()) continue;  // a rubbish entry: the real lane ends the session
      Tensor& t = job.tensors[e.tensor];
      if (e.flags == protocol::kFlagParts) {
        const std::uint64_t mask = protocol::parts_in(e.sequence).mask();
        TL_ASSERT(protocol::sequence_in(e.sequence) == t.done + 1 && (t.parts[member.rank] & mask) == 0);
        t.parts[member.rank] |= mask;
        continue;
      }
      t.submitted[member.rank] = e.sequence;
      submitted_.fetch_add(1);
      const bool all = t.submitted.size() == t.ranks && std::all_of(t.submitted.begin(), t.submitted.end(),
                                                                    [&](const auto& s) { return s.second > t.done; });
      if (!all) continue;
      if (mode_ == Mode::kRun) {
        run(job, e.tensor);
      } else {
        held_.emplace_back(job.name, e.tensor);
      }
    }
  }
  if (any) changed_.notify_all();
  return any;
}

// Sleeps without a time-out worth the name: a lost wake-up is seen as a test that takes seconds.
void FakeDaemon::lane() {
  while (true) {
    std::vector<std::shared_ptr<ports::ClientSession>> clients;
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    bool busy = false;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      for (auto& [name, job] : jobs_) {
        busy = serve(job) || busy;
        for (const Member& m : job.members) clients.push_back(m.client);
      }
    }
    if (busy) continue;
    for (const auto& client : clients) {
      busy = !client->arm_wake() || busy;
      fds.push_back({client->wake_fd(), POLLIN, 0});
    }
    if (!busy) poll(fds.data(), fds.size(), 3000);
    for (pollfd& fd : fds) {
      eventfd_t ignored = 0;
      if (fd.revents != 0) eventfd_read(fd.fd, &ignored);
    }
    for (const auto& client : clients) client->disarm_wake();
  }
}

}  // namespace tensorlane::test
