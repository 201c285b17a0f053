// Questions that users of this host ask its daemon, and through it those of other hosts; and questions of those.
//
// A client asks with one JSON object of at most protocol::kMaxQuestion bytes:
//   {"kind": "status", "args": {}, "hosts": ["gpu01"] or "all", "job": "name", "timeout_s": 3}
// `kind` is one of ports::Answerers. Without `hosts` and `job` this host is asked alone; with `job` those that take
// part in it, and args gets its "job_id". The answer is one JSON object, in which text of a host is a string of its
// own: what a host says cannot break what the others say:
//   {"host": "gpu01", "answers": [{"host": "gpu01", "text": "..."}, {"host": "gpu02", "error": {...}}]}
// A host that does not answer in time has an error that says so; the others' answers are not lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/token_bucket.h"
#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/control/message.h"
#include "daemon/ports/question.h"
#include "daemon/ports/session.h"

namespace tensorlane::control {

inline constexpr std::size_t kMaxAnswer = std::size_t{16} << 20;  // bytes of one host's
// Of a question between daemons, with what is around it.
inline constexpr std::size_t kMaxAskMessage = std::size_t{32} << 10;

// What Questions needs of control. Control's thread.
class QuestionEnvironment {
 public:
  virtual ~QuestionEnvironment() = default;
  virtual void need(const std::string& host) = 0;
  virtual void release(const std::string& host) = 0;
  virtual bool send(const std::string& host, const Message& message) = 0;
  virtual bool reachable(const std::string& host) = 0;
  // Any thread: `what` runs on control's.
  virtual void later(std::function<void()> what) = 0;
  virtual void reply(ports::SessionId session, std::uint32_t request, std::string json) = 0;
  // Of the fabric.
  virtual std::vector<std::string> hosts() const = 0;
  // The jobs here of which user `uid` of the host `from` may know.
  virtual std::vector<JobId> jobs_shown(std::uint32_t uid, const std::string& from) const = 0;
  // The hosts of the job that `text` names, by name or id, among those that user `uid` of this host may see, and its
  // id. Errors: kNotFound, kInvalidArgument where several jobs have the name.
  virtual Result<std::pair<std::uint64_t, std::vector<std::string>>> hosts_of_job(std::uint32_t uid,
                                                                                  const std::string& text) const = 0;
};

// Control's thread only. No sockets, threads or clocks of its own.
class Questions {
 public:
  // Of one other daemon: questions that are not yet answered, and for long in a second; more are refused. Its operators
  // count apart from its users, who so do not keep them out.
  static constexpr std::size_t kMostForeign = 64, kForeignRate = 200;
  // Of a user of this host: questions that are open, what their answers may have as JSON, and, for who is not an
  // operator, questions in a second. The sessions that asked may be gone.
  static constexpr std::size_t kMostOpen = 64, kMostOpenBytes = std::size_t{96} << 20, kRate = 100;
  static constexpr Duration kPatience = seconds(3), kMostPatience = seconds(600);

  // Its questions have numbers that follow `last_number`: a random one, so that answers to the questions of a daemon
  // that ran before are nobody's.
  Questions(std::string host, ports::Answerers answerers, QuestionEnvironment& environment,
            std::uint64_t last_number = 0);
  ~Questions();

  // Of a client of this host. Its answer comes by reply(): the object above, or {"error": {...}} where nobody was
  // asked.
  void ask(ports::SessionId session, std::uint32_t request, std::uint32_t uid, const std::string& text, Time now);
  // Of this daemon itself, as an operator, to that of one host.
  void ask_host(const std::string& host, const std::string& kind, const nlohmann::json& args, Duration patience,
                ports::Answered done, Time now);
  // Whether a kAnswer of that number is awaited from the host: others are not worth reading.
  bool awaits(const std::string& from, std::uint64_t number) const;
  // kAsk or kAnswer. False when malformed.
  bool handle(const std::string& from, const Message& message, Time now);
  // The host speaks another version of the control protocol. Where it has asked, it is told this one.
  void hear_another_version(const std::string& from, const Status& why, bool asks, Time now);
  void tick(Time now);
  // Until the next tick has something to do; nothing while no question is open.
  bool idle() const { return asked_.empty() && foreign_.empty(); }

 private:
  struct Awaited {
    std::string text;
    std::uint32_t parts = 0;  // that have come
    std::size_t bytes = 0;    // of `text` as JSON, in the sums below
    Status error;
    bool done = false;
  };
  struct Asked {
    std::uint32_t uid = 0;
    std::function<void(nlohmann::json)> done;  // takes the object above
    Time deadline;
    Duration patience;
    std::map<std::string, Awaited> hosts;
    std::size_t open = 0;   // hosts that are not done
    std::size_t bytes = 0;  // of all answers
  };
  struct Asker {
    std::size_t open = 0, bytes = 0;
    TokenBucket rate;
  };
  struct Request {
    std::string kind, args;
    std::vector<std::string> hosts;
    Duration patience;
  };
  struct Foreign {
    Time deadline;
    bool of_operator = false;
  };
  struct Caller {
    std::size_t open = 0;
    TokenBucket rate;
  };

  Caller& caller(const std::string& host, bool of_operator);
  Asker& asker(std::uint32_t uid);
  Status admit(std::uint32_t uid, Time now);
  void open(std::uint32_t uid, Request request, std::function<void(nlohmann::json)> done, Time now);
  // Whether the host's answer may have so many bytes; they are counted then.
  bool count(Asked& asked, Awaited& awaited, std::size_t bytes);
  Result<Request> parse(std::uint32_t uid, const std::string& text) const;
  void answer_here(std::string_view kind, const ports::Question& question, ports::Answered done) const;
  // A function that has control's thread take the answer.
  ports::Answered on_control(std::function<void(Result<std::string>)> take) const;
  bool take_question(const std::string& from, const Message& message, Time now);
  bool take_answer(const std::string& from, const Message& message);
  void send_answer(const std::string& to, std::uint64_t number, const Result<std::string>& answer);
  void settle(Asked& asked, const std::string& host, Result<std::string> answer);
  void finish(std::uint64_t number);
  Status silence_of(const Asked& asked, const std::string& host);

  const std::string host_;
  const ports::Answerers answerers_;
  QuestionEnvironment& environment_;
  // Through it answers come from other threads, until this object's end.
  struct Door {
    std::mutex mutex;
    QuestionEnvironment* environment;  // guarded by mutex
  };
  const std::shared_ptr<Door> door_;
  std::uint64_t last_number_;
  std::map<std::uint64_t, Asked> asked_;
  std::map<std::pair<std::string, std::uint64_t>, Foreign> foreign_;  // by host and its number
  std::map<std::pair<std::string, bool>, Caller> callers_;            // by host, its operators apart
  std::map<std::uint32_t, Asker> askers_;
};

// A Status as an object for people and machines: code, what, where, fix.
nlohmann::json error_object(const Status& status);

}  // namespace tensorlane::control
