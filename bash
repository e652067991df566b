Traceback (most recent call last):
  File "/root/bg.py", line 8, in <module>
    os.execvp(sys.argv[2], sys.argv[2:])
  File "<frozen os>", line 574, in execvp
  File "<frozen os>", line 616, in _execvpe
  File "<frozen os>", line 607, in _execvpe
FileNotFoundError: [Errno 2] No such file or directory
