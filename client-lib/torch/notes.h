// What the ranks of a group write into torch's store for each other when something is late or wrong.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace tensorlane::torch_backend {

// Uses the store on a thread of its own, since a store whose server hangs answers after minutes or never, and nothing
// else of the backend may wait for that. What it runs may therefore outlive the group, and has no pointers to it.
// Any thread calls.
class Notes {
 public:
  using Use = std::function<void(c10d::Store&)>;

  explicit Notes(c10::intrusive_ptr<c10d::Store> store);
  ~Notes();
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

  // Runs `use` after all that was given before. What it throws is lost, as is what comes while kMostAhead wait: a store
  // that has ended or hangs is no reason for errors of its own.
  void post(Use use);
  // What `question` answers, some day. Where it has thrown or was lost, a default.
  template <typename Answer>
  std::shared_future<Answer> ask(std::function<Answer(c10d::Store&)> question) {
    auto given = std::make_shared<Promise<Answer>>();
    post([given, question = std::move(question)](c10d::Store& store) { given->answer = question(store); });
    return given->promise.get_future().share();
  }
  // The same, for at most `most`, and a default after that. A store that has let one caller wait for nothing is waited
  // for by no other until it answers.
  template <typename Answer>
  Answer ask_for(std::chrono::milliseconds most, std::function<Answer(c10d::Store&)> question) {
    if (hangs()) return Answer();
    const std::shared_future<Answer> answer = ask(std::move(question));
    if (answer.wait_for(most) == std::future_status::ready) return answer.get();
    set_hangs();
    return Answer();
  }
  // Waits for what was given before, for at most `most`.
  void settle(std::chrono::milliseconds most);

 private:
  static constexpr std::size_t kMostAhead = 64;

  // Kept when the last one who could still answer lets go of it.
  template <typename Answer>
  struct Promise {
    ~Promise() { promise.set_value(std::move(answer)); }
    Answer answer{};
    std::promise<Answer> promise;
  };
  struct Shared;
  bool hangs() const;
  void set_hangs();
  static void run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace tensorlane::torch_backend
