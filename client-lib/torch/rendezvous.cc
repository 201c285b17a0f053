#include "client-lib/torch/rendezvous.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "client-lib/torch/library.h"

namespace tensorlane::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{20};
constexpr std::size_t kLongestPrefix = 100, kLongestGroup = 64;
constexpr int kNameParts = 4, kSecretParts = 8;

// Of 32 random bits each.
std::string random_word(int parts) {
  std::random_device device;
  std::ostringstream word;
  word << std::hex;
  for (int i = 0; i < parts; ++i) word << (device() | 0x10000000U);
  return word.str();
}

const char* environment(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

// What ranks have in common exactly when one daemon serves them: the kernel, and the file of the daemon's socket, which
// containers may see by different names.
std::string host_identity() {
  const char* given = environment("TENSORLANE_SOCKET");
  const std::string socket = given != nullptr ? given : "/run/tensorlane/tensorlaned.sock";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat found {};
  if (stat(socket.c_str(), &found) != 0) return boot + "/" + socket;
  return boot + "/" + std::to_string(found.st_dev) + "/" + std::to_string(found.st_ino);
}

tl_context_t* init(const tl_config_t& config, const std::string& group) {
  tl_context_t* context = nullptr;
  if (library().init(&config, &context) != TL_OK)
    fail(std::string(library().last_error()) + " (process group '" + group + "')");
  return context;
}

// The name of this host in the fabric file, which only its daemon knows: a job of one rank is told it.
const std::string& name_of_this_host(const std::string& group) {
  static std::mutex mutex;
  static std::string name;
  std::lock_guard lock(mutex);
  if (!name.empty()) return name;
  const std::string job = "torch." + random_word(kNameParts);
  tl_config_t config = TL_CONFIG_INIT;
  config.rank = config.local_rank = config.leader_port = 0;
  config.world_size = config.local_world_size = 1;
  config.job = job.c_str();
  config.leader = "";
  tl_context_t* context = init(config, group);
  const char* host = library().host(context);
  if (host != nullptr) name = host;
  (void)library().finalize(context);
  if (name.empty())
    fail("no daemon answers: process group '" + group + "': start tensorlaned on every host, or set TENSORLANE_SOCKET");
  return name;
}

// What the leader tells each rank. Words without blanks.
struct Welcome {
  std::string job, leader, secret;
  struct Member {
    std::string nonce;
    int local_rank = 0, local_size = 1;
  };
  std::vector<Member> members;

  std::string text() const {
    std::ostringstream out;
    out << job << ' ' << leader << ' ' << (secret.empty() ? "-" : secret);
    for (const Member& member : members)
      out << ' ' << member.nonce << ' ' << member.local_rank << ' ' << member.local_size;
    return out.str();
  }
  static Welcome of(const std::string& text) {
    Welcome welcome;
    std::istringstream in(text);
    in >> welcome.job >> welcome.leader >> welcome.secret;
    if (welcome.secret == "-") welcome.secret.clear();
    for (Member member; in >> member.nonce >> member.local_rank >> member.local_size;)
      welcome.members.push_back(member);
    return welcome;
  }
};

// Each rank says hello with a word that only this call knows (nonce). The leader welcomes these words, again whenever
// one changes: that rank was another process before. A rank that finds its word in the welcome says that it is ready.
class Rendezvous {
 public:
  Rendezvous(c10d::Store& store, int rank, int size, milliseconds timeout, const std::string& group,
             const std::atomic<bool>* stop)
      : store_(store),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        group_(group),
        stop_(stop),
        end_(Clock::now() + timeout) {}

  Welcome meet() {
    nonce_ = random_word(kNameParts);
    store_.set(key("hello", rank_), nonce_ + " " + host_identity());
    return rank_ == 0 ? lead() : follow();
  }

 private:
  static std::string key(const char* what, int rank) {
    return std::string("tensorlane/") + what + "/" + std::to_string(rank);
  }

  // Empty when there is none. Never blocks, as getting a key that is not there would, for all of the store's users.
  std::string look(const std::string& key) {
    if (!store_.check({key})) return "";
    try {
      return store_.get_to_str(key);
    } catch (const std::exception&) {
      return "";  // taken back meanwhile
    }
  }

  void pause(int& turns) {
    if (stop_ != nullptr && *stop_)
      fail("not all ranks have come: process group '" + group_ + "': it is not wanted any more");
    std::this_thread::sleep_for(std::min(kLongestPause, milliseconds(1 + turns++ / 4)));
  }

  [[noreturn]] void late(const std::vector<int>& missing) {
    std::string ranks;
    for (const int rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    fail("rank(s) " + ranks + " have not come: process group '" + group_ + "', within " +
         std::to_string(static_cast<double>(timeout_.count()) / 1000) +
         " s: start all ranks and let them make the same groups in the same order, or raise the time-out");
  }

  Welcome lead() {
    Welcome welcome;
    const char* job = environment("TENSORLANE_JOB");
    if (job == nullptr) job = environment("TORCHELASTIC_RUN_ID");
    welcome.job = std::string(job != nullptr ? job : "job").substr(0, kLongestPrefix) + ".torch." +
                  group_.substr(0, kLongestGroup) + "." + random_word(kNameParts);
    std::replace(welcome.job.begin(), welcome.job.end(), ' ', '_');
    welcome.leader = name_of_this_host(group_);
    if (environment("TENSORLANE_JOB_SECRET") == nullptr && environment("TENSORLANE_JOB_SECRET_FILE") == nullptr)
      welcome.secret = random_word(kSecretParts);
    welcome.members.resize(static_cast<std::size_t>(size_));
    std::vector<std::string> hosts(static_cast<std::size_t>(size_));
    for (int turns = 0;; pause(turns)) {
      std::vector<int> missing;
      if (collect(welcome, hosts, missing) && missing.empty()) {
        place(welcome, hosts);
        store_.set("tensorlane/welcome", welcome.text());
      }
      if (missing.empty()) missing = not_ready(welcome);
      if (missing.empty()) break;
      if (Clock::now() >= end_) late(missing);
    }
    take_back();
    return welcome;
  }

  // Whether anything has changed.
  bool collect(Welcome& welcome, std::vector<std::string>& hosts, std::vector<int>& missing) {
    bool changed = false;
    for (int rank = 0; rank < size_; ++rank) {
      std::istringstream hello(look(key("hello", rank)));
      std::string nonce, host;
      if (!(hello >> nonce >> host)) {
        missing.push_back(rank);
        continue;
      }
      const auto place = static_cast<std::size_t>(rank);
      changed |= nonce != welcome.members[place].nonce;
      welcome.members[place].nonce = nonce;
      hosts[place] = host;
    }
    return changed;
  }

  static void place(Welcome& welcome, const std::vector<std::string>& hosts) {
    std::map<std::string, int> sizes;
    for (std::size_t i = 0; i < hosts.size(); ++i) welcome.members[i].local_rank = sizes[hosts[i]]++;
    for (std::size_t i = 0; i < hosts.size(); ++i) welcome.members[i].local_size = sizes[hosts[i]];
  }

  std::vector<int> not_ready(const Welcome& welcome) {
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      if (look(key("ready", rank)) != welcome.members[static_cast<std::size_t>(rank)].nonce) missing.push_back(rank);
    }
    return missing;
  }

  void take_back() {
    store_.deleteKey("tensorlane/welcome");
    for (int rank = 0; rank < size_; ++rank) {
      store_.deleteKey(key("hello", rank));
      if (rank > 0) store_.deleteKey(key("ready", rank));
    }
  }

  Welcome follow() {
    for (int turns = 0;; pause(turns)) {
      Welcome welcome = Welcome::of(look("tensorlane/welcome"));
      const auto place = static_cast<std::size_t>(rank_);
      if (welcome.members.size() == static_cast<std::size_t>(size_) && welcome.members[place].nonce == nonce_) {
        store_.set(key("ready", rank_), nonce_);
        return welcome;
      }
      if (Clock::now() < end_) continue;
      std::vector<int> missing;
      for (int rank = 0; rank < size_; ++rank) {
        if (look(key("hello", rank)).empty()) missing.push_back(rank);
      }
      late(missing.empty() ? std::vector<int>{0} : missing);
    }
  }

  c10d::Store& store_;
  const int rank_, size_;
  const milliseconds timeout_;
  const std::string& group_;
  const std::atomic<bool>* const stop_;
  const Clock::time_point end_;
  std::string nonce_;
};

}  // namespace

Joined join_group(c10d::Store& store, int rank, int size, milliseconds timeout, const std::string& group,
                  const std::atomic<bool>* stop) {
  const Welcome welcome = Rendezvous(store, rank, size, timeout, group, stop).meet();
  const Welcome::Member& me = welcome.members[static_cast<std::size_t>(rank)];
  tl_config_t config = TL_CONFIG_INIT;
  config.rank = rank;
  config.world_size = size;
  config.local_rank = me.local_rank;
  config.local_world_size = me.local_size;
  config.job = welcome.job.c_str();
  config.secret = welcome.secret.empty() ? nullptr : welcome.secret.c_str();
  config.leader = welcome.leader.c_str();
  config.leader_port = 0;
  config.timeout_seconds = static_cast<double>(timeout.count()) / 1000;
  return {init(config, group), welcome.job};
}

}  // namespace tensorlane::torch_backend
