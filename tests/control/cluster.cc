#include "cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

// libzmq and libsodium are not built for the thread sanitizer, so what ZeroMQ hands from thread to thread looks like
// races.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\ncalled_from_lib:libsodium.so\nrace:libzmq.so\n";
}

namespace tensorlane::control::testing {
namespace {

constexpr std::uint32_t kUser = 1000;

// A client that never does anything.
class IdleClient final : public ports::ClientSession {
 public:
  std::size_t take(std::span<protocol::SubmissionEntry>) override { return 0; }
  void complete(const protocol::CompletionEntry&) override {}
  void fail(const Status&) override {}
  bool arm_wake() override { return true; }
  void disarm_wake() override {}
  void parts_in_place(const protocol::CompletionEntry&) override {}
  void observe_waits(bool) override {}
  int wake_fd() const override { return -1; }
  std::span<std::byte> map(const ports::BufferPlace&) override { return {}; }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return {}; }
  bool dead() const override { return false; }
};

protocol::PlanTensor plan_tensor(const protocol::TensorBody& body, const ports::JobSpec& spec) {
  protocol::PlanTensor planned;
  planned.pattern = spec.hosts.size() > 2 ? protocol::Pattern::kRing : protocol::Pattern::kParameterServer;
  planned.urgency = body.explicit_urgency != 0 || body.positions == 0
                        ? body.urgency
                        : 1.0f - static_cast<float>(body.position) / static_cast<float>(body.positions);
  planned.cls = ClassId(planned.urgency >= 0.5f ? 0 : 1);
  planned.slice_elements = 1024;
  for (const auto& host : spec.hosts)
    planned.fp32_contributions |= host.ranks.size() > 1 && dtype_size(body.dtype) == 2;
  return planned;
}

}  // namespace

KeyPair make_keys() {
  std::array<char, 41> public_key{}, secret_key{};
  EXPECT_EQ(zmq_curve_keypair(public_key.data(), secret_key.data()), 0);
  return {public_key.data(), secret_key.data()};
}

bool eventually(const std::function<bool()>& condition, double patience) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(patience * 1000));
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// On all addresses of this machine, and reserved until the process ends: a socket that is bound and does not listen
// keeps others away and, since it lets the address be used again, not the listener that the port is for.
std::uint16_t free_port() {
  static std::atomic<std::uint32_t> next{static_cast<std::uint32_t>(::getpid()) * 37};
  for (;;) {
    const auto port = static_cast<std::uint16_t>(2000 + next++ % 8000);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(port);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      const int yes = 1;
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
      return port;
    }
    close(fd);
  }
}

JobId job_id(const std::string& job) {
  return JobKey{kUser, "h0", 0, job}.id();
}

protocol::TensorBody tensor(const std::string& name, std::uint64_t elements, Dtype dtype) {
  protocol::TensorBody body;
  std::strncpy(body.name, name.c_str(), protocol::kMaxName);
  body.elements = elements;
  body.dtype = dtype;
  body.positions = 10;
  return body;
}

// ---- Sessions ----

void Sessions::joined(ports::SessionId session, Result<ports::JoinInfo> info) {
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(joined_.emplace(session.value, std::move(info)).second)
      << "session " << session.value << " was answered twice";
  changed_.notify_all();
}

void Sessions::registered(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) {
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(registered_.emplace(std::pair(session.value, request), std::move(ids)).second)
      << "request " << request << " was answered twice";
  changed_.notify_all();
}

void Sessions::unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) {
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(unregistered_.emplace(std::pair(session.value, request), std::move(tensors)).second)
      << "request " << request << " was answered twice";
  changed_.notify_all();
}

void Sessions::job_failed(ports::SessionId session, Status cause) {
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(failed_.emplace(session.value, std::move(cause)).second)
      << "session " << session.value << " failed twice";
  changed_.notify_all();
}

void Sessions::left(ports::SessionId session) {
  std::lock_guard lock(mutex_);
  left_[session.value] = true;
  changed_.notify_all();
}

void Sessions::status(ports::SessionId session, std::uint32_t request, std::string json) {
  std::this_thread::sleep_for(block_.load());
  std::lock_guard lock(mutex_);
  status_[{session.value, request}] = std::move(json);
  changed_.notify_all();
}

template <typename Map, typename Key>
auto Sessions::wait(const Map& map, const Key& key, double patience) -> std::optional<typename Map::mapped_type> {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::system_clock::now() + std::chrono::milliseconds(static_cast<int>(patience * 1000));
  if (!changed_.wait_until(lock, until, [&] { return map.contains(key); })) return std::nullopt;
  return map.at(key);
}

std::optional<Result<ports::JoinInfo>> Sessions::wait_joined(std::uint64_t session, double patience) {
  return wait(joined_, session, patience);
}

std::optional<Result<std::vector<TensorId>>> Sessions::wait_registered(std::uint64_t session, std::uint32_t request,
                                                                       double patience) {
  return wait(registered_, std::pair(session, request), patience);
}

std::optional<Result<std::uint32_t>> Sessions::wait_unregistered(std::uint64_t session, std::uint32_t request,
                                                                 double patience) {
  return wait(unregistered_, std::pair(session, request), patience);
}

std::optional<Status> Sessions::wait_failed(std::uint64_t session, double patience) {
  return wait(failed_, session, patience);
}

bool Sessions::wait_left(std::uint64_t session, double patience) {
  return wait(left_, session, patience).has_value();
}

std::optional<nlohmann::json> Sessions::wait_status(std::uint64_t session, std::uint32_t request, double patience) {
  const auto text = wait(status_, std::pair(session, request), patience);
  if (!text) return std::nullopt;
  return nlohmann::json::parse(*text);
}

// ---- Lane ----

Status Lane::start_job(ports::JobSpec spec) {
  const JobId job = spec.credentials.job;
  {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(!jobs_.contains(job) || jobs_[job].closed) << "job '" << spec.name << "' was started twice";
    jobs_[job] = {};
    jobs_[job].spec = std::move(spec);
  }
  if (connects_) listener_->on_job_connected(job);
  return {};
}

Status Lane::attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) {
  std::lock_guard lock(mutex_);
  EXPECT_NE(session, nullptr);
  EXPECT_TRUE(jobs_.at(job).attached.insert(rank.value).second);
  return {};
}

Status Lane::apply_plan(JobId job, protocol::Plan added, std::function<void()> then) {
  {
    std::lock_guard lock(mutex_);
    protocol::Plan& plan = jobs_.at(job).plan;
    const auto count = static_cast<std::uint32_t>(added.tensors.size());
    const protocol::TensorRange range{count == 0 ? 0 : added.tensors.front().id.value, count};
    EXPECT_TRUE(plan.has_room(range));
    std::vector<protocol::PlanTensor> tensors = std::exchange(added.tensors, std::move(plan.tensors));
    plan = std::move(added);
    plan.place(range, std::move(tensors));
  }
  then();
  return {};
}

Status Lane::vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) {
  {
    std::lock_guard lock(mutex_);
    JobRecord& record = jobs_.at(job);
    record.plan.vacate(range);
    record.plan.version = version;
    std::erase_if(record.bindings, [&](const Binding& binding) { return range.contains(binding.tensor); });
    if (holds_vacate_.exchange(false)) {
      vacated_ = std::move(then);
      return {};
    }
  }
  then();
  return {};
}

void Lane::vacate_now() {
  std::function<void()> then;
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(mutex_);
    then = std::exchange(vacated_, nullptr);
    return then != nullptr;
  }));
  if (then) then();
}

Status Lane::bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) {
  if (refused_binds_ > 0) {
    --refused_binds_;
    return Status(Code::kResourceExhausted, "the lane's queue is full");
  }
  std::lock_guard lock(mutex_);
  EXPECT_LT(tensor.value, jobs_.at(job).plan.tensors.size()) << "bound before the plan was in force";
  jobs_.at(job).bindings.push_back({rank, tensor, place});
  return {};
}

Status Lane::use_thresholds(JobId job, std::vector<double> thresholds) {
  std::lock_guard lock(mutex_);
  jobs_.at(job).thresholds = std::move(thresholds);
  return {};
}

Status Lane::awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) {
  std::lock_guard lock(mutex_);
  jobs_.at(job).awaited.push_back({tensor, sequence, waited});
  return {};
}

Status Lane::rank_left(JobId job, Rank rank) {
  std::lock_guard lock(mutex_);
  jobs_.at(job).left.insert(rank.value);
  return {};
}

Status Lane::abort_job(JobId job, Status cause) {
  {
    std::lock_guard lock(mutex_);
    jobs_.at(job).aborted = std::move(cause);
    jobs_.at(job).closed = true;
  }
  listener_->on_job_closed(job);
  return {};
}

Status Lane::detach(JobId job, Rank rank) {
  {
    std::lock_guard lock(mutex_);
    JobRecord& record = jobs_.at(job);
    record.detached.insert(rank.value);
    if (record.detached.size() < record.attached.size()) return {};
    record.closed = true;
  }
  listener_->on_job_closed(job);
  return {};
}

Lane::JobRecord Lane::record(JobId job) {
  std::lock_guard lock(mutex_);
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? JobRecord{} : it->second;
}

// ---- Cluster ----

Cluster::Cluster(ClusterOptions o) : options(o) {
  spdlog::default_logger_raw();  // made here, not by whichever host logs first
  fabric::Fabric fabric;
  fabric.path = "fabric.yaml";
  fabric.classes = fabric::preset(fabric::Preset::kGreenfield);
  for (std::size_t i = 0; i < options.hosts; ++i) {
    keys.push_back(make_keys());
    fabric::Host host;
    host.name = name(i);
    host.addresses["tcp"] = {"127.0.0." + std::to_string(i + 1)};
    host.control_port = free_port();
    host.public_key = options.hosts > 1 ? keys.back().public_key : "";
    fabric.hosts.push_back(std::move(host));
    sessions_.push_back(std::make_unique<Sessions>());
    lanes_.push_back(std::make_unique<Lane>());
    controls_.push_back(nullptr);
  }
  fabrics.assign(options.hosts, fabric);
  settings.assign(options.hosts, {{"daemon.yaml tags", "true"}, {"fabric.yaml class 1", "bulk: DSCP 27"}});
}

Cluster::~Cluster() {
  for (auto& control : controls_) {
    if (control) control->stop();
  }
}

Status Cluster::start_host(std::size_t host) {
  ControlConfig config;
  config.fabric = &fabrics[host];
  config.host = name(host);
  config.secret_key = options.hosts > 1 ? keys[host].secret_key : "";
  config.detection = options.detection;
  config.join_timeout = options.join_timeout;
  config.stall_warning = options.stall_warning;
  config.stall_error = options.stall_error;
  config.tuned_classes = options.tuned_classes;
  config.settings = settings[host];
  config.more_status = more_status;
  config.job_ended = job_ended;
  if (host == 0) {
    config.ordering = options.ordering;
    config.concurrent = options.concurrent;
  }
  config.planner = plan_tensor;
  controls_[host] = std::make_unique<Control>(std::move(config));
  lanes_[host]->set_listener(controls_[host].get());
  return controls_[host]->start(*lanes_[host], *sessions_[host]);
}

void Cluster::start() {
  for (std::size_t i = 0; i < options.hosts; ++i) {
    if (controls_[i]) continue;
    const Status status = start_host(i);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

void Cluster::kill(std::size_t host) {
  controls_[host].reset();
}

ports::JoinRequest Cluster::request(std::uint32_t rank, std::uint32_t per_host, const std::string& job,
                                    std::uint64_t base) {
  ports::JoinRequest request;
  request.session = ports::SessionId(base + rank);
  request.job = job;
  request.leader = "127.0.0.1";
  request.rank = rank;
  request.world_size = static_cast<std::uint32_t>(options.hosts) * per_host;
  request.local_rank = rank % per_host;
  request.local_world_size = per_host;
  request.uid = kUser;
  request.pid = 100 + rank;
  request.secret.assign(16, std::byte{0x5a});
  request.client = std::make_shared<IdleClient>();
  return request;
}

void Cluster::join_all(std::uint32_t per_host, const std::string& job, std::uint64_t base) {
  const auto world = static_cast<std::uint32_t>(options.hosts) * per_host;
  for (std::uint32_t rank = 0; rank < world; ++rank) control(rank / per_host).join(request(rank, per_host, job, base));
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto joined = sessions(rank / per_host).wait_joined(base + rank);
    ASSERT_TRUE(joined.has_value()) << "rank " << rank << " was not answered";
    ASSERT_TRUE(joined->ok()) << "rank " << rank << ": " << joined->status().to_string();
  }
}

Status joined_error(Cluster& cluster, std::size_t host, std::uint64_t session) {
  const auto joined = cluster.sessions(host).wait_joined(session);
  EXPECT_TRUE(joined.has_value()) << "session " << session << " was not answered";
  if (!joined || joined->ok()) return {};
  return joined->status();
}

}  // namespace tensorlane::control::testing
